"""Laws of stop texts: where the answer ends, what the trace says of it, and that transformers ends it there too."""

import pytest
import torch

import specviz
from specviz import trace
from specviz.models.tokens import Watch
from specviz.request import Request, read_stops, spell_stops
from specviz.session.whole_run import activate, whole_run
from specviz.session.workbench import Workbench
from tests.helpers.runs import ids, made

PAIR = {"target": "fable-target", "draft": "fable-target"}  # its own draft: every block is accepted
BLOCKS = {"prompt": "Once upon a time", **PAIR, "num_speculative_tokens": 6, "max_new_tokens": 14}


@pytest.fixture(scope="module")
def bench():
    return Workbench()


@pytest.fixture(scope="module")
def whole(bench):
    return made(bench, **BLOCKS)


@pytest.mark.slow
def test_at_every_place_of_a_block_the_answer_ends_before_the_stop_text(bench, whole):
    text = whole.text
    assert [len(step.emitted) for step in whole.steps] == [7, 7]
    for start in range(len(text) - 3):
        stop = text[start : start + 3]  # it may begin and end within tokens
        cut, place = made(bench, **BLOCKS, stop=(stop,)), text.find(stop)
        assert (cut.footer.reason, cut.footer.stop) == ("stop", {"text": stop, "at": place})
        assert cut.answer == text[:place]
        assert ids(cut) == ids(whole)[: len(ids(cut))]
        assert cut.text.find(stop) == place, "no token behind the one that completes it"
        assert "".join(token.text for token in cut.tokens[:-1]).find(stop) == -1
        last, same = cut.steps[-1], whole.steps[len(cut.steps) - 1]
        assert len(last.emitted) + last.truncated == len(same.emitted) + same.truncated
        lines = "\n".join(map(trace.dump_event, cut.events()))
        assert trace.read_trace(lines.encode(), max_bytes=1 << 20).footer == cut.footer


def test_the_first_of_several_stop_texts_ends_the_answer(bench, whole):
    text = whole.text
    later, first = text[9:12], text[4:6]
    cut = made(bench, **BLOCKS, stop=(later, first))
    assert cut.footer.stop["at"] == min(text.find(later), text.find(first))


def test_a_stop_text_that_does_not_come_changes_nothing(bench, whole):
    asked = made(bench, **BLOCKS, stop=("never in this text",))
    assert ids(whole) == ids(asked)
    assert asked.footer.stop is None
    assert asked.answer == asked.text


def test_a_stop_text_must_begin_in_the_answer(bench, whole):
    """The end of the prompt and the beginning of the answer together are none."""
    stop = whole.header.prompt.text[-1] + next(char for char in whole.text)
    assert (made(bench, **BLOCKS, stop=(stop,)).footer.reason == "stop") == (stop in whole.text)


class Pieces:
    """Ids whose bytes stand in a list."""

    def __init__(self, *pieces):
        self.bytes_of = pieces.__getitem__


@pytest.mark.parametrize(
    ("pieces", "stops", "found_at"),
    [
        ([b"a\xf0\x9f", b"\xa6", b"\x8ab"], ["🦊"], 2),
        ([b"caf\xc3", b"\xa9", b"!"], ["é"], 1),
        ([b"x\n", b"\ny"], ["\n\n"], 1),
        ([b"ab", b"cd", b"ef"], ["bcde", "zz"], 2),
        ([b"aab"], ["ab"], 0),
        ([b"a", b"", b"b"], ["ab"], 2),
        ([b"\xe6\x97", b"\xa5\xe6", b"\x9c\xac"], ["日本"], 2),
        ([b"ab", b"a", b"c"], ["abc"], None),
    ],
)
def test_a_stop_text_is_found_over_the_borders_of_tokens_and_characters(pieces, stops, found_at):
    watch = Watch(Pieces(*pieces), *(stop.encode() for stop in stops))
    found = [watch.ends_with(token) for token in range(len(pieces))]
    assert found == [place == found_at for place in range(len(pieces))]


@pytest.fixture(scope="module")
def fable(bench):
    return bench.pool.load("fable-target")


@pytest.mark.parametrize("stops", [["."], [" the"], ["e s", "zzz"], ["\n", "ed"]], ids=str)
def test_a_greedy_answer_is_that_of_transformers_cut_at_the_stop(fable, stops):
    prompt = "Once upon a time"
    mine = specviz.run(prompt, temperature=0.0, max_new_tokens=40, stop=stops)
    ids_before = torch.tensor([fable.text.encode(prompt)])
    told = {"stop_strings": stops, "tokenizer": fable.tokenizer, "do_sample": False, "max_new_tokens": 40}
    out = fable.model.generate(ids_before, attention_mask=torch.ones_like(ids_before), pad_token_id=0, **told)
    text = fable.tokenizer.decode(out[0, ids_before.shape[1] :], skip_special_tokens=True)
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    assert mine.answer == text[: min(places, default=None)]
    assert (mine.footer.reason == "stop") == bool(places)


def test_a_run_without_pace_ends_there_too(bench):
    request = Request(prompt="Once upon a time", target="fable-target", draft="fable-draft", stop=(".",))
    active = activate(request.validate(), bench.pool)
    recorded = whole_run(active)
    assert recorded.footer.stop == {"text": ".", "at": recorded.text.index(".")}
    assert whole_run(active).answer == recorded.answer, "every text has a watch of its own"


def test_what_is_typed_comes_back_as_it_was_meant():
    stops = ("\n\n", "a\tb", " the", "日本")
    assert read_stops(spell_stops(stops).splitlines()) == stops
    assert read_stops(["", "\\n"]) == ("\n",)
