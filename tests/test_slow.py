"""Slow tests that nobody forgets: each is listed with the files that it covers, and is due where these have changed."""

import pytest
from slow_tests import COMMAND, ROOT, asked_for, digest, listed, name_of, renew

LISTED = listed()


@pytest.mark.parametrize("name", LISTED)
def test_what_a_slow_test_covers_is_as_it_was_at_its_last_pass(name):
    assert LISTED[name]["sha256"] == digest(LISTED[name]["covers"]), f"{name} is due: run {COMMAND} {name}"


def test_every_slow_test_is_listed_and_every_listed_one_is_there(request):
    slow = [item.nodeid for item in request.config.slow_tests]
    assert [test for test in slow if name_of(test, LISTED) is None] == []
    for name in LISTED:
        file, _, function = name.partition("::")
        assert f"def {function}" in (ROOT / file).read_text("utf-8")


def test_a_pass_renews_its_own_hash_alone(tmp_path):
    (tmp_path / "one.py").write_text("1")
    entries = "".join(f'# why\n["{name}"]\ncovers = ["*.py"]\nsha256 = ""\n\n' for name in ("a.py::b", "c.py"))
    path = tmp_path / "slow.toml"
    path.write_text(entries)
    renew({"c.py"}, path, tmp_path)
    assert [entry["sha256"] for entry in listed(path).values()] == ["", digest(["*.py"], tmp_path)]
    assert path.read_text().count("# why") == 2
    (tmp_path / "one.py").write_text("2")
    assert listed(path)["c.py"]["sha256"] != digest(["*.py"], tmp_path)
    with pytest.raises(FileNotFoundError, match="no file matches"):
        digest(["*.txt"], tmp_path)


@pytest.mark.parametrize(
    ("argument", "whole"),
    [
        ("tests", True),
        ("tests/a/", True),
        ("tests/a/b.py", True),
        ("tests/a/b.py::c", True),
        ("tests/a/b.py::c[1]", False),
    ],
)
def test_only_a_whole_test_renews_its_hash(argument, whole):
    assert asked_for("tests/a/b.py::c", [argument]) == whole
