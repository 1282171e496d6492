"""What is measured once on a machine: kept in a file, the same for every later start."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch

from specviz.decoding.forward import products
from specviz.decoding.forward.products import Products
from specviz.models import memory as machine
from specviz.models.memory import environment

measured_once = cache(products.measure)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where it is kept. What is measured is measured once for all tests of a quiet machine."""
    monkeypatch.setattr(machine, "measure", measured_once)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(products, "_QUIET", 0)  # other tests may keep the machine busy
    monkeypatch.setenv("PATH", "")  # no compiler: it would build for each test
    machine._products.cache_clear()
    return tmp_path / "cache"


def test_a_busy_machine_is_measured_at_a_later_start(folder, monkeypatch):
    monkeypatch.setattr(machine, "measure", products.measure)
    monkeypatch.setattr(products, "_QUIET", 2)
    assert machine.products().columns == Products().columns
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(products, "_QUIET", 0)
    monkeypatch.setattr(machine, "measure", measured_once)
    machine._products.cache_clear()
    first = machine.products()
    (file,) = folder.iterdir()
    assert file.read_text("utf-8") == f"{first}\n"


def test_of_many_first_visitors_one_measures(folder, monkeypatch):
    calls, all_there = [], threading.Barrier(8)
    monkeypatch.setattr(machine, "measure", lambda: calls.append(time.sleep(0.1)))

    def ask(_):
        all_there.wait()
        return machine.products()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert len(calls) == 1


def test_a_later_start_reads_what_the_first_one_measured(folder):
    first = machine.products()
    (file,) = folder.iterdir()
    assert file.read_text("utf-8") == f"{first}\n"
    file.write_text("columns 1 23 0\n", "utf-8")
    machine._products.cache_clear()
    assert str(machine.products()) == "columns 1 23 0"


def test_two_first_starts_agree(folder):
    machine.products()
    (file,) = folder.iterdir()
    file.write_text("columns 4 4 4\n", "utf-8")
    machine._keep(file)
    assert file.read_text("utf-8") == "columns 4 4 4\n"
    assert list(folder.iterdir()) == [file]


def test_without_a_file_to_keep_nothing_is_measured_anew_at_each_start(folder):
    folder.write_text("a file where the folder should be")
    assert machine.products().columns == Products().columns
    folder.unlink()
    machine._products.cache_clear()
    machine.products()
    (file,) = folder.iterdir()
    file.write_text("\0", "utf-8")
    machine._products.cache_clear()
    assert machine.products().columns == Products().columns


def test_a_traces_header_says_which_products_were_taken(folder):
    assert environment(torch.device("cpu"))["products"] == str(machine.products())
