"""The package as it is installed, from wheel and source archive, used from a folder that knows no repository."""

import os
import shutil
import tarfile
import urllib.request
import zipfile

import pytest

import specviz
from tests import starts_up
from tests.helpers import environments
from tests.helpers.environments import ROOT

pytestmark = pytest.mark.slow
SHOWN = "import specviz, sys; print(specviz.__file__, *sys.path, sep='\\n')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """By kind: the archive that the build backend makes of a copy of the repository."""
    place = tmp_path_factory.mktemp("built")
    others = shutil.ignore_patterns(".*", "build", "dist", "runs", "venv", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, place / "source", ignore=others)
    maker = environments.make(place / "maker", "setuptools>=77")
    for kind in ("sdist", "wheel"):
        program = f"from setuptools import build_meta; build_meta.build_{kind}('..')"
        environments.run(maker, "-c", program, cwd=place / "source")
    return {"sdist": next(place.glob("*.tar.gz")), "wheel": next(place.glob("*.whl"))}


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request, built, tmp_path_factory):
    """The Python of an environment with specviz alone, which borrows the other packages, and an empty folder."""
    place = tmp_path_factory.mktemp(request.param)
    python = environments.make_borrowing(place / ".venv")
    environments.install(python, "--no-deps", built[request.param])
    own = environments.run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    shutil.copytree(ROOT / "assets" / "prompts", f"{own}/assets/prompts")  # a stranger's folder of that name
    (place / "elsewhere").mkdir()
    return python, place / "elsewhere"


def ours(folder):
    """The files of a folder of the repository that are no leftovers of running it."""
    paths = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {path.relative_to(ROOT).as_posix() for path in paths}


def test_both_archives_hold_every_file_of_the_package_and_the_assets_once(built):
    wanted = ours("specviz") | {name for name in ours("assets") if not name.startswith("assets/screenshots/")}
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(name.replace("assets/", "specviz/assets/", 1) for name in wanted)
    with tarfile.open(built["sdist"]) as archive:
        files = [member.name.split("/", 1)[1] for member in archive if member.isfile()]
    assert len(files) == len(set(files))
    assert wanted <= set(files)
    assert {name.split("/")[0] for name in files if "/" in name} == {"assets", "specviz", "specviz_explorer.egg-info"}


def test_the_command_works_from_any_folder_and_takes_nothing_from_the_repository(installed):
    python, elsewhere = installed
    command = python.with_name("specviz")
    found, *path = environments.run(python, "-c", SHOWN, cwd=elsewhere).splitlines()
    assert found.startswith(str(elsewhere.parent))
    assert not any(place == str(ROOT) or place.startswith(f"{ROOT}{os.sep}") for place in path)
    assert environments.run(command, "--version", cwd=elsewhere) == f"specviz {specviz.__version__}\n"
    words = ("run", "--prompt", "Once upon a time", "--max-new-tokens", "8", "--out", "run.jsonl.gz")
    printed = environments.run(command, *words, cwd=elsewhere)
    shown = environments.run(command, "show", "run.jsonl.gz", cwd=elsewhere)
    assert "Once upon a time" in shown
    assert printed.replace("saved run.jsonl.gz\n", "") == shown
    (elsewhere / "prompts.jsonl").write_text('{"prompt": "Once upon a time"}\n{"prompt": "The king said"}\n', "utf-8")
    words = ("align", "--prompts", "prompts.jsonl", "--out", "job", "--max-new-tokens", "8", "--no-costs")
    assert "fable-draft" in environments.run(command, *words, cwd=elsewhere)
    assert (elsewhere / "job" / "report.html").is_file()
    environments.run(command, "export", "--site", "site", "--no-checks", "--report", "job/report.html", cwd=elsewhere)
    environments.run(command, "space", "push", "owner/name", "--dry-run", "space", cwd=elsewhere)
    needed = (elsewhere / "space" / "requirements.txt").read_text("utf-8")
    assert "torch==2.11.0" in needed
    assert "transformers<" in needed
    environments.run(command, "export", "first-visit", "--html", "run.html", cwd=elsewhere)
    environments.run(command, "export", "--lessons", "lessons.html", cwd=elsewhere)


def test_the_command_alone_serves_the_page(installed):
    python, elsewhere = installed
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPECVIZ_ASSETS")}
    with starts_up.serving([str(python.with_name("specviz"))], elsewhere, environment) as address:
        page = urllib.request.urlopen(address, timeout=30).read().decode()
        assert "specviz" in page
        assert "<h1" in urllib.request.urlopen(f"{address}/specviz/docs/README.md", timeout=30).read().decode()
        assert b"<svg" in urllib.request.urlopen(f"{address}/favicon.ico", timeout=30).read()
