"""The buttons under a run that is over: they follow from the run alone, and each names what it does."""

from dataclasses import replace

import pytest

from specviz.drafters import METHODS
from specviz.models.chat import ready_text
from specviz.models.pool import ModelPool
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.trace.metrics import metrics
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views.explore.feed import Feed
from tests.helpers import traces
from tests.helpers.hostile_trace import EVIL
from tests.helpers.messages import as_json

each_shipped = pytest.mark.parametrize("name", shipped_runs())
SEEN = 0.05


def message_of(trace):
    return as_json(Feed.from_trace(trace, "run").since(0))


def next_of(trace):
    return message_of(trace)["end"]["next"]


def words_of(step):
    return "".join(step["words"])


def that(steps, does, key=""):
    """The buttons that do this, and that ask for a value of this name."""
    return [step for step in steps if step["does"] == does and (not key or key in step["asks"])]


def asked(trace, **changes):
    """The same run, as if it had been asked for with other values."""
    header, *events = trace.events()
    return Trace([replace(header, request={**header.request, **changes}), *events])


def rejected_pieces(trace):
    """Every rejected token that the text shows: its step, its ref, its text as a page shows it, p and q."""
    for step, shown in zip(trace.steps, message_of(trace)["steps"], strict=True):
        for text, status, ref in shown["pieces"]:
            if status == "rejected":
                token = step.draft[int(ref)]
                yield step.index, ref, text, token.p_judged or 0.0, 1.0 if token.q is None else token.q


def is_word(text):
    return text.startswith(" ") and text.strip().isalpha() and len(text) > 2


@each_shipped
def test_the_question_names_a_rejected_token_of_the_text_a_word_with_both_bars_where_there_is_one(name):
    trace = shipped_trace(name)
    rejected = [*rejected_pieces(trace)]
    pins = that(next_of(trace), "pin")
    if not rejected:
        assert pins == []
        return
    (pin,) = pins
    found = {(step, ref): (text, p, q) for step, ref, text, p, q in rejected}
    text, p, q = found[pin["at"]["step"], pin["at"]["ref"]]
    assert words_of(pin) == f"Why was {text.strip()} rejected?"
    words = [one for one in found.values() if is_word(one[0])]
    assert is_word(text) or not words
    if any(min(one[1:]) >= SEEN for one in words):
        assert min(p, q) >= SEEN


@each_shipped
def test_another_k_is_offered_only_where_a_person_sets_k(name):
    trace = shipped_trace(name)
    last = trace.steps[-1].settings
    others = that(next_of(trace), "run", "k")
    assert bool(others) == METHODS[last.method].under(last.params).sets_k
    for other in others:
        assert other["asks"] == {"k": 4 if last.k >= 8 else 8}
        assert words_of(other) == f"Try K {other['asks']['k']}"


@each_shipped
def test_another_ready_prompt_of_the_same_kind_is_offered_and_it_can_be_asked_for(name):
    trace = shipped_trace(name)
    request = trace.header.request
    file = prompts_file()
    kinds = [file["dialogues"]] if request["chat"] else file["kinds"]
    ready = [ready_text(prompt) for kind in kinds for prompt in kind["prompts"]]
    (other,) = that(next_of(trace), "run", "prompt")
    assert other["asks"]["prompt"] in ready
    assert other["asks"]["prompt"] != request["prompt"]
    assert other["note"] == "Acceptance depends on the text."
    assert len(words_of(other)) < 60
    Request.from_dict({**request, **other["asks"]}).validate()


def test_after_the_hard_prompt_comes_an_easier_one_and_after_every_other_the_hard_one():
    trace = shipped_trace("real-question")
    (after_hard,) = that(next_of(trace), "run", "prompt")
    (after_other,) = that(next_of(asked(trace, prompt="What is a fox?")), "run", "prompt")
    assert trace.header.request["prompt"] == after_other["asks"]["prompt"] == "Why is the sky blue?"
    assert words_of(after_other) == "Now ask: Why is the sky blue?"
    easy = after_hard["asks"]["prompt"]
    assert that(next_of(asked(trace, prompt=easy)), "run", "prompt") == [after_other]
    (text,) = that(next_of(shipped_trace("first-visit")), "run", "prompt")
    assert words_of(text) == "Now begin: def count_vowels(text):"


def test_questions_and_texts_each_have_one_that_is_hard():
    file = prompts_file()
    for kinds in ([file["dialogues"]], file["kinds"]):
        prompts = [prompt for kind in kinds for prompt in kind["prompts"]]
        assert [prompt["hard"] for prompt in prompts if "hard" in prompt] == [True]


@pytest.mark.slow
def test_of_the_hard_text_fewer_drafted_tokens_are_accepted():
    bench = Workbench(ModelPool())

    def accepted(prompt):
        shares = []
        for seed in (5, 6, 7, 8):
            request = Request(prompt=prompt, target="fable-target", draft="fable-draft", max_new_tokens=64, seed=seed)
            run = session.open_run(request, bench=bench)
            list(run.events())
            shares.append(metrics(run.trace)["acceptance_rate_judged"])
        return sum(shares) / len(shares)

    prompts = [prompt for kind in prompts_file()["kinds"] for prompt in kind["prompts"]]
    hard = next(prompt["text"] for prompt in prompts if prompt.get("hard"))
    assert accepted(hard) < accepted(prompts[0]["text"]) - 0.1


def test_a_run_that_cannot_be_asked_for_again_offers_what_needs_no_server():
    for prompt in ("", None, 7, ["a"]):
        assert [step["does"] for step in next_of(asked(traces.chain(), prompt=prompt))] == ["pin", "picture"]


def test_without_a_step_there_is_nothing_to_do_next():
    assert next_of(traces.empty()) == []


def test_a_recording_that_is_cut_offers_the_same():
    header, models, *steps, _ = traces.chain().events()
    cut = Trace([header, models, *steps])
    assert message_of(cut)["end"]["reason"] == "cut"
    assert next_of(cut) == next_of(traces.chain())


@each_shipped
def test_a_picture_has_the_question_of_a_chat_or_the_start_of_a_text(name):
    trace = shipped_trace(name)
    ((picture,),) = [that(next_of(trace), "picture")]
    shows, request = picture["shows"], trace.header.request
    if request["chat"]:
        assert request["prompt"].startswith(shows["question"])
        assert len(shows["question"]) <= 240
        assert shows["start"] == ""
    else:
        assert shows["question"] == ""
        assert request["prompt"].endswith(shows["start"].replace("⏎\n", "\n").removeprefix("… "))


def test_what_a_model_or_a_person_wrote_is_shown_as_harmless_as_elsewhere():
    (picture,) = that(next_of(asked(traces.hostile(), prompt=f"\u202e{EVIL}", chat=True)), "picture")
    assert "\u202e" not in picture["shows"]["question"]
    assert "⟨202E⟩" in picture["shows"]["question"]
