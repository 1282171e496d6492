"""Laws of the library: unique harmless names, last used first, forgetting by count and size, safe between threads."""

import threading
from pathlib import Path

import pytest
import traces

from specviz.errors import SpecvizError
from specviz.store import Store, safe_name
from specviz.trace import TraceError, dump_event, load_trace


def names(store: Store) -> list[str]:
    return [entry.name for entry in store.list()]


def size_of(made: object) -> int:
    return sum(len(dump_event(event).encode()) + 1 for event in made.events())


def test_what_was_added_is_found() -> None:
    store, made = Store(), traces.chain()
    assert store.get(store.add(made, "first run")) is made


def test_equal_names_are_made_unique() -> None:
    store = Store()
    assert [store.add(traces.empty(), "run") for _ in range(3)] == ["run", "run (2)", "run (3)"]


def test_the_last_used_stands_first() -> None:
    store = Store()
    for name in "abc":
        store.add(traces.empty(), name)
    store.get("a")
    assert names(store) == ["a", "c", "b"]


def test_the_least_recently_used_is_forgotten_beyond_the_capacity() -> None:
    store = Store(capacity=2)
    store.add(traces.empty(), "a")
    store.add(traces.empty(), "b")
    store.get("a")
    store.add(traces.empty(), "c")
    assert names(store) == ["c", "a"]


def test_the_least_recently_used_is_forgotten_beyond_the_size() -> None:
    one = size_of(traces.chain())
    store = Store(max_bytes=2 * one)
    for name in "abc":
        store.add(traces.chain(), name)
    assert names(store) == ["c", "b"]


def test_the_newest_stays_however_large() -> None:
    store = Store(max_bytes=10)
    store.add(traces.empty(), "a")
    store.add(traces.chain(), "b")
    assert names(store) == ["b"]


def test_a_removed_trace_is_gone() -> None:
    store = Store()
    store.add(traces.empty(), "a")
    store.remove("a")
    assert names(store) == []
    for ask in (store.get, store.remove):
        with pytest.raises(SpecvizError, match="no run called 'a'"):
            ask("a")


def test_saved_traces_load(tmp_path: Path) -> None:
    store = Store()
    path = store.save(store.add(traces.chain(), "my run"), tmp_path / "new")
    assert path == tmp_path / "new" / "my run.jsonl.gz"
    assert load_trace(path) == traces.chain()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/abs", "..", "", "a\0b", "a\nb", ".hidden", "x" * 500, "C:\\x", "Größe"]
)
def test_names_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{safe_name(name)}.jsonl"
    path.write_text("")
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert not path.name.startswith(".")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    traces.chain().save(tmp_path / "one.jsonl")
    traces.tree().save(tmp_path / "two.jsonl.gz")
    (tmp_path / "three.jsonl").write_text("hello\n")
    (tmp_path / "notes.txt").write_text("no trace")
    return tmp_path


def test_a_folder_is_listed_by_name_and_read_when_asked(folder: Path) -> None:
    store = Store()
    assert store.add_folder(folder) == names(store) == ["one", "three", "two"]
    assert all(entry.num_bytes == 0 for entry in store.list())
    assert store.get("two") == traces.tree()
    assert store.list()[0].num_bytes == size_of(traces.tree())


def test_forgetting_a_file_keeps_it_on_the_list_and_on_disk(folder: Path) -> None:
    store = Store(capacity=1)
    store.add_folder(folder)
    store.get("one")
    store.get("two")
    assert {entry.name: entry.num_bytes > 0 for entry in store.list()} == {"two": True, "one": False, "three": False}
    assert store.get("one") == traces.chain()
    store.remove("one")
    assert (folder / "one.jsonl").exists()


def test_a_bad_file_is_told_when_it_is_asked_for(folder: Path) -> None:
    store = Store()
    store.add_folder(folder)
    with pytest.raises(TraceError, match="line 1"):
        store.get("three")


def test_a_store_of_nothing_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="capacity"):
        Store(capacity=0)


def test_threads_do_not_lose_or_mix_traces() -> None:
    store, errors = Store(capacity=500), []

    def work(worker: int) -> None:
        try:
            for _ in range(20):
                name = store.add(traces.empty(), "run")
                store.get(name)
                store.list()
                if worker % 2:
                    store.remove(name)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    assert len(set(names(store))) == len(store.list()) == 60
