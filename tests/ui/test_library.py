"""Laws of the library drawer: what it says of a run, what it gives a browser to keep, and what it takes back."""

import base64
import gzip
import json
import unicodedata
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest
from msgspec.structs import astuple

from specviz.trace import Trace, read_trace
from specviz.trace import export as exports
from specviz.trace.shipped import shipped_file, shipped_runs, shipped_trace
from specviz.ui import registry as registry_file
from specviz.ui.explore import library as library_panel
from specviz.ui.registry import Registry
from specviz.ui.view import View
from specviz.views.explore import library
from specviz.views.explore.feed import INCOMPLETE, Feed
from specviz.views.explore.panels import PanelRefusal, RunEntry, StoredRun
from tests.helpers import traces

SESSION = SimpleNamespace(session_hash="one")


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def ask(registry):
    """ask("entry", {...}): what the browser gets from one of the drawer's calls."""
    calls = {call.__name__: call for call in library_panel.calls_of(registry)}
    return lambda name, asked: calls[name](asked)


def showing(registry, **asked):
    event = gr.EventData(None, asked)
    return json.loads(library_panel.show_callback(registry)(SESSION, event))


def letters(content: bytes) -> str:
    return base64.b64encode(content).decode()


def ended(trace: Trace, state: str = "finished") -> View:
    """A view of a run as a session has it, without one."""
    return View(f"run-{id(trace)}", Feed("run"), trace, run=SimpleNamespace(state=state))


# ---- words ----------------------------------------------------------------------------------------


def test_a_run_is_told_by_its_settings_its_prompt_its_numbers_and_its_date():
    said = library.entry(traces.chain())
    emitted = sum(len(event.get("emitted", ())) for event in traces.events_of(traces.chain()))
    calls = sum(event.get("calls", {}).get("target", 0) for event in traces.events_of(traces.chain()))
    assert said == RunEntry(
        title="Draft model · fable-draft · K 4 · temperature 1",
        words="“Once upon a”",
        facts=f"{emitted} tokens · {emitted / calls:.2f} tokens per target call",
        date="2025-01-01T00:00:00Z",
    )


def test_a_file_that_was_cut_short_says_so(registry, ask):
    whole = exports.json_lines(traces.chain()).encode()
    cut = registry.keep(read_trace(whole[: whole.rindex(b"\n", 0, -1) - 20]))
    assert cut.trace.steps
    assert ask("kept", {"run": cut.id}).facts.endswith(f" tokens per target call · {INCOMPLETE} · opened")
    assert INCOMPLETE not in ask("kept", {"run": registry.keep(read_trace(whole)).id}).facts


def test_what_was_changed_on_the_way_is_told_in_order():
    assert library.entry(traces.changed_k()).title == "Draft model · fable-draft · K 4 → 2 → 8 · temperature 1"


def test_of_many_changes_the_first_are_told():
    made = traces.Builder()
    for k in (1, 2, 3, 4, 5):
        made.chain(k, 0, changed={"k": k})
    assert "K 1 → 2 → 3 → … · " in library.entry(made.finish()).title


def test_a_run_without_a_draft_model_names_none():
    made = traces.Builder().chain(0, 0, changed={"method": "none", "draft_model": None, "k": 0, "temperature": 0.0})
    assert library.entry(made.finish()).title == "No draft · temperature 0"


def test_one_token_is_not_called_tokens():
    assert library.entry(traces.Builder().chain(0, 0).finish()).facts.startswith(
        "1 token · 1.00 tokens per target call"
    )


def test_a_lossy_rule_is_told():
    made = traces.Builder().chain(changed={"rule": "typical", "lossless": False}).finish()
    assert library.entry(made).facts.endswith(" · lossy")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"top_p": 0.9}, " · top-p 0.9"),
        ({"top_k": 40}, " · top-k 40"),
        ({"min_p": 0.1}, " · min-p 0.1"),
        ({"draft_min_p": 0.1}, " · draft min-p 0.1"),
        ({"draft_temperature": 0.0}, " · draft temperature 0"),
        ({"rule": "typical"}, " · Typical acceptance"),
        ({"rule": "broken:<b>"}, " · broken:<b>"),
        ({"params": {"k_policy": "constant", "least_confidence": 0.7}}, " · least confidence 0.7"),
        ({"params": {"k_policy": "adaptive", "<b>": "\u202e"}}, " · k policy adaptive, <b> ⟨202E⟩"),
        ({"params": dict.fromkeys("abcd", 1)}, " · a 1, b 1, c 1, …"),
        ({"params": {"k_policy": "constant", "least_confidence": 0.4}}, ""),
    ],
)
def test_whatever_is_not_as_usual_is_told(changed, told):
    usual = "Draft model · fable-draft · K 4 · temperature 1"
    made = traces.Builder().chain(changed=changed).finish()
    assert library.entry(made, library_panel.usual_settings).title == usual + told
    if "params" not in changed:
        later = traces.Builder().chain().chain(changed=changed).finish()
        usual_words = {"top_p": "top-p 1", "top_k": "top-k 0", "min_p": "min-p 0", "rule": "Speculative sampling"}
        before = usual_words.get(next(iter(changed)), "")
        was = f" · {before} → {told.split()[-1]}" if before else told
        assert was[-9:] in library.entry(later).title, "and what it was before"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"enable_thinking": False}, " · enable thinking False"),
        ({"<b>": "\u202e"}, " · <b> ⟨202E⟩"),
        ({}, ""),
        (["x"], ""),
    ],
)
def test_the_chat_options_of_a_run_are_told(options, told):
    first, *rest = traces.chain().events()
    made = Trace([replace(first, request={**first.request, "chat_options": options}), *rest])
    assert library.entry(made).title == library.entry(traces.chain()).title + told


def test_two_runs_that_differ_in_their_seed_alone_have_different_words():
    first, second = (library.entry(traces.Builder(seed=seed).chain().finish()).facts for seed in (0, 7))
    assert first != second
    assert second.endswith(" · seed 7")


def prompted(text: object) -> Trace:
    """A trace whose request says that this was typed."""
    first, *rest = traces.chain().events()
    return Trace([replace(first, request={**first.request, "prompt": text}), *rest])


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("One\n  two\tthree", "“One two three”"),
        ("a " * 12, f"“{'a ' * 11}a”"),
        ("a " * 13, f"“{'a ' * 11}a …”"),
        ("x" * 5000, f"“{'x' * 64} …”"),
        ("\u202eabc\x00", "“⟨202E⟩abc⟨0000⟩”"),
        ("", "“Once upon a”"),
        (["<b>"], "“Once upon a”"),
    ],
)
def test_the_prompt_is_told_by_its_first_words(typed, told):
    assert library.entry(prompted(typed)).words == told


@pytest.mark.parametrize("made", [*traces.ALL.values(), lambda: prompted("\x1b[31m" * 99)])
def test_no_word_steers_the_page_or_has_no_end(made):
    for words in astuple(library.entry(made())):
        assert len(words) < 300
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in words)


def test_the_date_of_a_strange_clock_is_shown_as_it_stands():
    made = traces.Builder(created="yesterday\n<b>").chain().finish()
    assert library.entry(made).facts.endswith(" · yesterday⏎<b>")
    assert library.entry(made).date == ""


def test_every_run_that_comes_with_specviz_is_listed_with_its_numbers(ask):
    listed = ask("listed", None)
    assert [said.name for said in listed] == list(shipped_runs())
    for said in listed:
        lines = gzip.decompress(shipped_file(said.name).read_bytes()).splitlines()
        steps = [event for event in map(json.loads, lines) if event["event"] == "step"]
        tokens, calls = sum(len(step["emitted"]) for step in steps), sum(step["calls"]["target"] for step in steps)
        told = f"{tokens} tokens · {tokens / calls:.2f} tokens per target call"
        assert said.facts == told + (" · lossy" if shipped_runs()[said.name].broken else "")
        assert said.title == shipped_runs()[said.name].title


def test_a_shipped_run_that_cannot_be_read_says_so(monkeypatch):
    monkeypatch.setattr(library, "shipped_trace", lambda name: read_trace(b"hello\n"))
    said = library.shipped_entry(next(iter(shipped_runs().values())))
    assert said.facts.startswith("cannot be read: line 1")


# ---- what a browser keeps -------------------------------------------------------------------------


def test_what_a_browser_keeps_comes_back_as_the_same_run(registry, ask):
    run = registry.show(ended(traces.chain()), None).id
    kept = ask("kept", {"run": run})
    assert read_trace(base64.b64decode(kept.packed)) == traces.chain()
    assert kept.size == len(base64.b64decode(kept.packed))
    brought = ask("bring", {"packed": kept.packed}).run
    assert registry.get(brought).trace == traces.chain()
    assert ask("kept", {"run": brought}).key == ask("kept", {"run": run}).key == kept.key


def test_what_the_browser_has_is_not_sent_again_nor_packed_twice(registry, ask, monkeypatch):
    run = registry.keep(traces.chain()).id
    key = ask("kept", {"run": run, "has": "no list"}).key
    monkeypatch.setattr(library_panel.exports, "json_lines", None)  # it is not even written out
    assert ask("kept", {"run": run, "has": [{}, key]}) == StoredRun(key)
    monkeypatch.undo()
    assert ask("kept", {"run": registry.keep(traces.chain()).id, "has": [key]}) == StoredRun(key)
    assert ask("kept", {"run": run, "has": ["another"]}).packed


def test_two_runs_that_differ_at_all_have_two_keys(registry, ask):
    runs = (traces.chain(), traces.Builder(seed=1).chain().finish(), traces.Builder(seed=1).chain().finish("eos"))
    assert len({ask("kept", {"run": registry.keep(trace).id}).key for trace in runs}) == len(runs)


def test_whether_a_run_is_known_is_asked_without_reading_it(registry, ask, monkeypatch):
    monkeypatch.setattr(library_panel.exports, "json_lines", None)
    assert ask("known", {"run": registry.keep(traces.chain()).id}) is True
    assert ask("known", {"run": "no such run"}) is ask("known", None) is False


def test_only_what_was_not_run_here_is_called_opened(registry, ask):
    ran, opened = registry.show(ended(traces.chain()), None), registry.keep(traces.chain())
    assert not ask("kept", {"run": ran.id}).facts.endswith("opened")
    assert ask("kept", {"run": opened.id}).facts.endswith(" · opened")


@pytest.mark.parametrize(
    "view",
    [
        ended(traces.Builder().chain().trace, "running"),
        ended(traces.empty()),
        ended(Trace(), "loading"),
        Registry().find_recorded("greedy"),
    ],
    ids=["it goes on", "no step", "no header", "comes with specviz"],
)
def test_nothing_else_is_kept(registry, ask, view):
    registry.show(view, None)
    assert ask("kept", {"run": view.id}) is None


def test_a_recorded_run_that_cannot_be_read_keeps_no_other_from_joining(registry, ask, monkeypatch):
    monkeypatch.setattr(library_panel, "shipped_runs", None)
    monkeypatch.setattr(registry_file, "shipped_trace", None)
    assert ask("kept", {"run": registry.keep(traces.chain()).id}).packed


def test_the_file_of_a_shipped_run_is_kept_like_any_other(registry, ask):
    opened = registry.keep(read_trace(shipped_file("greedy").read_bytes()))
    assert ask("kept", {"run": opened.id}).facts.endswith(" · opened")


@pytest.mark.parametrize("asked", [None, [], "run", {"run": None}, {"run": ["a"]}, {"run": "no such run"}, {}])
def test_whatever_is_asked_for_that_is_not_there_is_none(ask, asked):
    assert ask("kept", asked) is None


def test_a_run_that_could_not_be_brought_back_is_not_kept(registry, ask, monkeypatch):
    monkeypatch.setattr(library_panel, "MAX_UPLOAD_BYTES", 1000)
    refusal = ask("kept", {"run": registry.keep(traces.long()).id}).refusal
    assert refusal.startswith("This run is too large to store here (0.")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (None, "must be a text"),
        ({"a": 1}, "must be a text"),
        ("", "must be a text"),
        ("A" * (library_panel.MOST_LETTERS + 1), "must be a text"),
        ("not base64!", "damaged"),
        ("é", "damaged"),
        (letters(b"hello\n"), "line 1"),
        (letters(gzip.compress(b" " * (9 << 20))), "a line is longer than 8 MB"),
        (letters(shipped_file("greedy").read_bytes()[:40]), ""),
    ],
)
def test_what_is_no_run_is_refused_in_words(registry, ask, sent, words):
    answer = ask("bring", {"packed": sent})
    assert isinstance(answer, PanelRefusal)
    assert answer.refusal.startswith("this run cannot be opened: ")
    assert words in answer.refusal
    with pytest.raises(gr.Error, match="this run cannot be opened"):
        showing(registry, packed=sent)


def test_however_much_is_brought_nobody_loses_a_run_and_few_of_them_are_kept(registry, ask):
    other = registry.show(ended(traces.chain(), "paused"), "two")
    known = registry.keep(traces.chain())
    packed = letters(exports.json_lines(traces.chain()).encode())
    brought = [ask("bring", {"packed": packed}).run for _ in range(registry_file.MOST_VIEWS + 2)]
    assert registry.current("two") is other
    assert registry.get(known.id) is known
    last = brought[-registry_file.MOST_BROUGHT :]
    assert [run for run in brought if registry.get(run)] == last


# ---- what is opened -------------------------------------------------------------------------------


def test_a_run_of_the_drawer_is_shown_whole_as_a_recorded_one(registry):
    for asked in ({"shipped": "greedy"}, {"packed": letters(shipped_file("greedy").read_bytes())}):
        shown = showing(registry, **asked)
        assert shown["head"]["recorded"] is True
        assert "".join(step["written"] for step in shown["steps"]) == shipped_trace("greedy").text
        assert registry.current("one").id == shown["run"]


def test_every_opening_of_a_kept_run_has_a_name_of_its_own_and_a_recorded_one_the_same_everywhere(registry):
    packed = letters(shipped_file("greedy").read_bytes())
    assert showing(registry, packed=packed)["run"] != showing(registry, packed=packed)["run"]
    assert showing(registry, shipped="greedy")["run"] == showing(registry, shipped="greedy")["run"] == "shipped:greedy"
    assert registry.find_recorded("greedy") is registry.current("one")


def test_an_unknown_recorded_run_is_refused_by_name(registry):
    with pytest.raises(gr.Error, match=r"must be one of .* \(got &#x27;\.\./x&#x27;\)"):
        showing(registry, shipped="../x")
