"""The compiled code is built once for a machine, in the background; without it all goes on, and a reason says why."""

import os
import shutil

import pytest
import torch

from specviz.models import compiler
from specviz.models.compiler import Build
from specviz.models.memory import environment, products
from tests.helpers.compiled_code import compiled_products


@pytest.fixture
def built():
    """The library that the session has built."""
    compiled_products()
    return compiler.build()._path


def finished(folder):
    build = Build(folder)
    build.wait()
    return build


def pretend(folder, script):
    """A compiler that does this, before all others in the path."""
    folder.mkdir()
    program = folder / "c++"
    program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_it_is_built_in_the_background_and_found_at_a_later_start(built, tmp_path):
    build = Build(tmp_path)
    assert build.found == (None, "it is being built")
    build.wait()
    assert build.found[0] is not None
    assert build.found[1] == ""
    (library,) = tmp_path.iterdir()  # nothing else is left there
    assert library.name == built.name
    before = library.stat().st_mtime_ns
    assert Build(tmp_path).found[0] is not None
    assert library.stat().st_mtime_ns == before


def test_without_a_compiler_a_run_is_made_by_torch_and_says_why(tmp_path, monkeypatch, folder):
    from specviz.models.pool import ModelPool

    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    loaded = ModelPool(10**9, allow_any=True).load(str(folder))
    compiler.build().wait()
    assert products().why_not_compiled == "no C++ compiler was found"
    assert "compiled" not in environment(torch.device("cpu"))["products"]
    assert loaded.cached_lm().path == "compact (not compiled: no C++ compiler was found)"
    assert not list((tmp_path / "cache").glob("quick-*"))


@pytest.mark.skipif(os.name != "posix", reason="the pretended compilers are shell scripts")
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo no such flag >&2; exit 1", "the C++ compiler failed: no such flag"),
        ('for last; do :; done; echo no library > "$last"', "it could not be loaded: "),
        ("exit 0", "it could not be built: "),
        (r"printf 'kein Flag f\374r' >&2; exit 1", "the C++ compiler failed: kein Flag f\ufffdr"),
        ('echo "no $9 of $7" >&2; exit 1', "the C++ compiler failed: "),
        ("exec sleep 60", "the C++ compiler took more than 2 seconds"),
    ],
)
def test_a_compiler_that_fails_is_told(script, why, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "LONGEST_S", 2)
    monkeypatch.setenv("PATH", pretend(tmp_path / "bin", script))
    compiled, reason = finished(tmp_path / "cache").found
    assert compiled is None
    assert reason.startswith(why)
    assert not any(str(folder) in reason for folder in (tmp_path / "cache", compiler.SOURCE.parent))


@pytest.mark.skipif(os.name != "posix", reason="others are users of a Unix system")
def test_a_library_that_others_could_have_put_there_is_not_loaded(built, tmp_path):
    library = tmp_path / built.name
    shutil.copy(built, library)
    library.chmod(0o777)
    assert finished(tmp_path).found == (None, f"others can write to {built.name}")
    library.chmod(0o755)
    assert finished(tmp_path).found[0] is not None


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be", "utf-8")
    compiled, reason = finished(tmp_path / "cache").found
    assert compiled is None
    assert reason.startswith("it could not be built: ")


@pytest.mark.skipif(os.name != "posix", reason="Unix says it in these words")
def test_a_folder_that_cannot_be_looked_into_is_told(tmp_path):
    folder = tmp_path / ("x" * 300)
    assert finished(folder).found == (None, "it could not be built: File name too long")


def test_another_source_or_processor_has_another_library(monkeypatch, tmp_path):
    name = compiler.library_name()
    monkeypatch.setattr(compiler, "_CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("model name : other\nflags : sse2\ncpu MHz : 3\n\nmodel name : next", "utf-8")
    other = compiler.library_name()
    (tmp_path / "cpuinfo").write_text("model name : other\nflags : sse2\ncpu MHz : 4\n\n", "utf-8")
    assert compiler.library_name() == other != name  # its clock is no part of it
    monkeypatch.setattr(compiler, "SOURCE", tmp_path / "cpuinfo")
    assert compiler.library_name() != other
