"""The dependency audit that stands written is for the requirements as they are, and says no more than was found out."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specviz
from tests import dependency_audit
from tests.dependency_audit import CHANGELOG, Package, findings, packages_of, settle, standing, with_section
from tests.helpers import environments
from tests.helpers.environments import ROOT

AGAIN = "run .ci/release, which audits them or says why it could not"
LOG = "# Changelog\n\nWords.\n\n## [2.0.0]\n\n### Fixed\n- One.\n\n## [1.0.0]\n\n### Added\n- All.\n"
BILL = {
    "metadata": {
        "component": {"name": "specviz-explorer", "version": "2.0.0"},
        "tools": {"components": [{"name": "cyclonedx-py", "version": "7.5.0"}]},
    },
    "components": [{"name": name, "version": "1.0+cpu"} for name in ("One", "two_parts", "three", "four")],
}
SKIPPED = "Dependency not found on PyPI and could not be audited"
HOSTILE = 'no\n\n## [9.9.9]\n\n### Dependency audit\n- Audited: all. No "vulnerability" <b>is</b> - known`'


def test_the_newest_audit_is_for_this_release_and_for_the_requirements_as_they_are():
    written = standing(CHANGELOG.read_text("utf-8"))
    assert written is not None, f"CHANGELOG.md tells of no dependency audit: {AGAIN}"
    changed = dependency_audit.differences(dependency_audit.requirements(), written.requirements)
    assert not changed, f"requirements.txt has changed since the dependency audit in CHANGELOG.md ({changed}): {AGAIN}"
    release = specviz.__version__
    assert written.release == release, (
        f"the audit in CHANGELOG.md is for specviz {written.release}, not {release}: {AGAIN}"
    )


def test_it_is_told_where_no_audit_was_made():
    """With a warning, as only the index's own advisories can mend it: no test asks for them."""
    written = standing(CHANGELOG.read_text("utf-8"))
    assert written.was_made or written.outcome.startswith("Not audited: on ")
    if not written.was_made:
        warnings.warn(f"this release's packages are not audited. {written.outcome}", stacklevel=1)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (["a>=1,<2", "b>=3"], ""),
        (["b>=3", "a>=1,<2"], ""),
        (["a>=1,<3", "b>=3"], "new: a>=1,<3; gone: a>=1,<2"),
        (["a>=1,<2", "b>=3", "c"], "new: c"),
        (["a>=1,<2"], "gone: b>=3"),
    ],
)
def test_a_requirement_that_has_changed_is_named(now, told):
    assert dependency_audit.differences(now, ["a>=1,<2", "b>=3"]) == told


def report_of(answers):
    """pip-audit's report with an answer for each package of BILL: its vulnerabilities, "skipped" or "absent"."""
    entries = []
    for package, answer in zip(packages_of(BILL), answers, strict=True):
        name = package.key[0]
        if answer == "skipped":
            entries.append({"name": name, "skip_reason": f"{SKIPPED}: {name} ({package.version})"})
        elif answer != "absent":
            vulns = [{"id": each, "aliases": [f"CVE-{each}"], "fix_versions": [], "description": ""} for each in answer]
            entries.append({"name": name, "version": package.version, "vulns": vulns})
    return {"dependencies": entries, "fixes": []}


@given(st.lists(st.sampled_from(["skipped", "absent", (), ("GHSA-1",), ("GHSA-2", "PYSEC-3")]), min_size=4, max_size=4))
def test_a_package_without_an_answer_is_named_and_never_called_free_of_vulnerabilities(answers):
    asked = packages_of(BILL)
    found = findings(asked, report_of(answers), "")
    text = "\n".join(found.told("on a day pip-audit asked PyPI"))
    silent = [package for package, answer in zip(asked, answers, strict=True) if answer in ("skipped", "absent")]
    known = [each for answer in answers if not isinstance(answer, str) for each in answer]
    assert text.startswith("Not audited: ") == (len(silent) == 4)
    assert found.is_clean == ("is known in any of them" in text) == (not silent and not known)
    assert ("No vulnerability is known" in text) == (not known and len(silent) < 4)
    assert len(silent) == 4 or all(f"`{package.name}` 1.0" in text for package in silent)
    assert all(text.count(f"`{each}`") == known.count(each) for each in ("GHSA-1", "GHSA-2", "PYSEC-3"))


@pytest.mark.parametrize("report", [{}, {"dependencies": [], "fixes": []}])
def test_an_audit_that_ended_without_a_report_was_not_made(report):
    (told,) = findings(packages_of(BILL), report, "Traceback\nConnectionError: no such host\n").told("on a day")
    assert told.startswith("Not audited: ")
    assert "ConnectionError: no such host" in told


def noted(reason):
    """The section for an audit that got no answer, with these words for it."""
    found = findings(packages_of(BILL), {"dependencies": [{"name": "One", "skip_reason": reason}]}, "")
    return dependency_audit.section(found, "on a day pip-audit 2.10.1 asked PyPI", BILL, "two.cdx.json")


@pytest.mark.parametrize("reason", [SKIPPED, HOSTILE], ids=["plain", "hostile"])
def test_what_is_written_is_read_back(reason):
    written = standing(with_section(LOG, noted(reason)))
    assert written.outcome.startswith("Not audited: on a day pip-audit 2.10.1 asked PyPI about 4 packages ")
    assert (written.release, written.was_made) == ("2.0.0", False)
    assert written.requirements == dependency_audit.requirements()


@pytest.mark.parametrize("log", [LOG, LOG.partition("\n## [1.0.0]")[0], with_section(LOG, noted("earlier"))])
def test_the_section_stands_in_the_newest_release_once_and_nothing_else_changes(log):
    new = noted(HOSTILE)
    written = with_section(log, new)
    assert written.count(new) == 1
    assert new in written.partition("## [1.0.0]")[0]
    assert written.replace(new, "").split() == log.replace(noted("earlier"), "").split()
    assert with_section(written, new) == written


def test_an_older_releases_audit_stays_as_it_was():
    older = with_section("# Changelog\n\n## [1.0.0]\n\n### Added\n- All.\n", noted("earlier"))
    log = older.replace("## [1.0.0]", "## [2.0.0]\n\n### Added\n- More.\n\n## [1.0.0]")
    assert standing(log) == standing(older), "between releases the last one's audit is the newest"
    assert with_section(log, noted("later")).endswith(older.partition("## [1.0.0]")[2])


def test_a_bill_is_about_the_wheel_and_names_no_folder(tmp_path):
    wheel = tmp_path / "own.whl"
    wheel.write_bytes(b"wheel")
    references = [{"type": "distribution", "url": wheel.as_uri()}, {"type": "website", "url": "https://example.org"}]
    own = {"name": "specviz-explorer", "version": "2.0.0", "type": "library", "externalReferences": references}
    bill = settle({"metadata": {}, "components": [BILL["components"][0], own]}, wheel)
    subject = bill["metadata"]["component"]
    assert subject["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}]
    assert str(tmp_path) not in json.dumps(bill)
    assert packages_of(bill) == [Package("One", "1.0")], "an index knows no build of a version"


@pytest.mark.slow
def test_a_release_lists_what_its_wheel_brings_and_writes_what_it_found_out(tmp_path):
    source = tmp_path / "source"
    left = shutil.ignore_patterns(".git", ".venv", "venv", "build", "dist", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left)
    environments.run("git", "init", "--quiet", cwd=source)
    environments.run("git", "add", ".", cwd=source)
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", ".ci/release"], cwd=source, env={**os.environ, "PATH": python}, capture_output=True)
    assert done.returncode in (0, 1), done.stderr.decode()
    (wheel,), (archive,) = source.glob("dist/*.whl"), source.glob("dist/*.tar.gz")
    bill = json.loads((source / "dist" / f"{archive.name.removesuffix('.tar.gz')}.cdx.json").read_text("utf-8"))
    subject = bill["metadata"]["component"]
    assert subject["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    words = ("-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", "-r")
    resolved = json.loads(environments.run(sys.executable, *words, ROOT / "requirements.txt"))["install"]
    brought = [Package(each["metadata"]["name"], each["metadata"]["version"].partition("+")[0]) for each in resolved]
    assert {package.key for package in packages_of(bill)} == {package.key for package in brought}
    written = standing((source / "CHANGELOG.md").read_text("utf-8"))
    assert (written.release, written.requirements) == (specviz.__version__, dependency_audit.requirements())
    assert f"about {len(brought)} packages" in written.outcome
    assert (done.returncode == 0) == ("No vulnerability is known in any of them" in written.outcome)
