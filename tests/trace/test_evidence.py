"""Laws of the panel "how this draft was made": it follows from the evidence, whoever wrote it, and survives any."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from specviz.trace import ROOT, Step, Trace
from specviz.trace.evidence import MOST_DEPTH, MOST_TEXT, MOST_VALUES, write_evidence
from specviz.trace.metrics import METRICS, count, metrics
from specviz.views.explore.evidence.parts import MOST_CHIPS, MOST_LINES
from specviz.views.explore.evidence.tree import MOST_NODES
from specviz.views.explore.evidence.view import show_making
from specviz.views.explore.feed import Feed
from specviz.views.explore.titles import lossy_note
from specviz.views.words import label, percent
from tests.helpers import evidence_traces, traces
from tests.helpers.messages import as_json

every_evidence = pytest.mark.parametrize("make", evidence_traces.ALL.values(), ids=list(evidence_traces.ALL))


def piece(token):
    return (f" t{token}", None) if token != 7 else ("\ufffd", "f09f")


def made_of(made) -> list[dict]:
    steps = json.loads(Feed.from_trace(made, "run").message(0, None))["steps"]
    return [step.get("made") for step in steps]


def first(make) -> dict:
    return next(made for made in made_of(make()) if made)


def part(make, kind: str, title: str) -> dict:
    return next(part for part in first(make)["parts"] if (part["kind"], part["title"]) == (kind, title))


def rows(found: dict) -> list[list]:
    return [[name, [chip[:2] for chip in chips]] for name, chips, _ in found["lines"]]


# ---- what a record holds ------------------------------------------------------------------------------------------


def test_every_token_of_evidence_gets_its_text_and_nothing_else_does():
    told = {"found": [[{"id": 3}], [{"id": 7}]], "draft": {"id": 2, "text": "own"}, "id": "no token"}
    assert write_evidence(told, piece) == {
        "found": [[{"id": 3, "text": " t3"}], [{"id": 7, "text": "\ufffd", "bytes": "f09f"}]],
        "draft": {"id": 2, "text": "own"},
        "id": "no token",
    }


def test_written_evidence_is_plain_json_with_nine_digits():
    told = {"scores": (1 / 3, math.nan, math.inf, 1e300), "on": True, "none": None, "words": "x" * 99_999}
    made = write_evidence(told, piece)
    assert made["scores"] == [0.333333333, None, None, None]
    assert (made["on"], made["none"], len(made["words"])) == (True, None, MOST_TEXT)
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_written_evidence_is_bounded():
    deep = {"id": 1}
    for _ in range(50):
        deep = {"a": deep}
    made, depth = write_evidence(deep, piece), 0
    while made := made.get("a"):
        depth += 1
    assert depth <= MOST_DEPTH
    wide = write_evidence({"rows": [list(range(1000))] * 1000}, piece)
    assert sum(len(row) for row in wide["rows"]) <= MOST_VALUES


def test_evidence_that_json_does_not_know_is_the_drafters_fault():
    with pytest.raises(ValueError, match="must hold what JSON knows"):
        write_evidence({"rows": object()}, piece)


# ---- the tree -----------------------------------------------------------------------------------------------------


def nodes_of(step: Step) -> list[list]:
    found = [part for part in as_json(show_making(step, []))["parts"] if part["kind"] == "tree"]
    return found[0]["nodes"]


TREES = [evidence_traces.tree, evidence_traces.wide_tree, evidence_traces.medusa, evidence_traces.lookahead]


@pytest.mark.parametrize("make", TREES)
def test_the_tree_holds_every_drafted_node_once_with_its_fate(make):
    step = make().steps[0]
    drafted = {str(node): token for node, token in enumerate(step.draft) if token.status != "scratch"}
    nodes = nodes_of(step)
    assert sorted(node[0] for node in nodes) == sorted(drafted)
    for ref, text, status, depth, *_, probabilities in nodes:
        token = drafted[ref]
        assert (text, status, depth) == (label(token.text, token.bytes), token.status, token.depth)
        assert probabilities == percent(token.p)


@pytest.mark.parametrize("make", TREES)
def test_no_two_nodes_stand_in_one_place_and_every_edge_leads_down_to_a_child(make):
    step = make().steps[0]
    nodes = {int(node[0]): node for node in nodes_of(step)}
    places = [(node[3], node[4]) for node in nodes.values()]
    assert len(set(places)) == len(places)
    for number, node in nodes.items():
        parent = step.draft[number].parent
        assert node[5] == (0 if parent == ROOT else nodes[parent][4])
        assert node[5] <= node[4]


@pytest.mark.parametrize("make", TREES)
def test_the_path_taken_is_the_first_row(make):
    step = make().steps[0]
    taken = [node for node in nodes_of(step) if node[2] == "accepted"]
    assert [node[4] for node in taken] == [0] * len(taken)
    assert len(taken) == sum(token.status == "accepted" for token in step.draft) > 0


@pytest.mark.parametrize("make", TREES)
def test_nodes_come_in_reading_order_with_their_place_among_siblings(make):
    step = make().steps[0]
    above = []
    for ref, _, _, depth, *_ in (nodes := nodes_of(step)):
        parent = step.draft[int(ref)].parent
        above = above[: depth - 1]
        assert parent == (above[-1] if above else ROOT)
        above.append(int(ref))
    for node in nodes:
        siblings = [other for other in nodes if step.draft[int(other[0])].parent == step.draft[int(node[0])].parent]
        assert node[7:9] == [siblings.index(node) + 1, len(siblings)]


def test_a_path_at_the_end_of_a_huge_tree_is_shown():
    size = 2 * MOST_NODES
    made = traces.Builder([f" w{n}".encode() for n in range(400)]).step((ROOT,) * size, {size - 1}, point_mass=True)
    found = first(made.finish)["parts"][0]
    assert len(found["nodes"]) == MOST_NODES
    assert "accepted" in {node[2] for node in found["nodes"]}
    assert f"{size - MOST_NODES} more nodes" in found["note"]


def test_scores_stand_at_their_nodes():
    step = evidence_traces.tree().steps[0]
    for ref, *_, score, _, _, _ in nodes_of(step):
        assert score == percent(step.evidence["scores"][int(ref)])


def test_scores_of_drafted_nodes_alone_stand_at_these_nodes_wherever_scratch_nodes_stand():
    step = evidence_traces.tree().steps[0]
    helper = replace(step.draft[0], status="scratch", p_judged=None, accept_prob=None, u=None)
    scores = step.evidence["scores"][1:]
    step = replace(step, draft=(helper, *step.draft[1:]), evidence={**step.evidence, "scores": scores})
    shown = {int(ref): score for ref, *_, score, _, _, _ in nodes_of(step)}
    assert shown
    assert shown == {node: percent(scores[node - 1]) for node in shown}


def test_a_chain_has_no_tree():
    assert all(made is None for made in made_of(traces.chain()))


# ---- by head, by level, and the stories ---------------------------------------------------------------------------


def on_a_chain(evidence: dict) -> Callable[[], Trace]:
    return lambda: evidence_traces.one("of_tomorrow", evidence_traces.chain(4), {0, 1}, evidence, point_mass=True)


def test_where_a_tree_is_shown_its_nodes_are_not_listed_again():
    for make in (evidence_traces.medusa, evidence_traces.eagle):
        assert first(make)["parts"][0]["kind"] == "tree"
        assert not {part["title"] for part in first(make)["parts"]} & {"Most likely by head", "Grown by level"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (evidence_traces.medusa, "its own head gave the token"),
        (evidence_traces.eagle, "the whole path"),
        (evidence_traces.tree, "the whole path"),
        (evidence_traces.lookahead, ""),
    ],
)
def test_the_percentages_of_a_tree_are_explained(make, words):
    note = part(make, "tree", "The tree")["note"]
    assert words in note
    assert bool(note) == bool(words)


def test_candidates_stand_by_head_and_rank_each_once():
    make = on_a_chain({"heads": 3, "ranks": [0, 1, 2, 0], "scores": evidence_traces.shares(4)})
    step, found = make().steps[0], part(make, "lines", "Most likely by head")
    assert [name for name, *_ in found["lines"]] == [f"head {j}" for j in range(1, 5)]
    ranks = step.evidence["ranks"]
    for depth, (_, chips, _) in enumerate(found["lines"], 1):
        here = {(ranks[node], token.id) for node, token in enumerate(step.draft) if token.depth == depth}
        expected = [traces.STORY[id_].decode() for _, id_ in sorted(here)]
        assert [chip[0] for chip in chips] == [label(text) for text in expected]


def test_a_level_is_ordered_by_score():
    make = on_a_chain({"scores": evidence_traces.shares(4), "levels": 4})
    found = part(make, "lines", "Grown by level")
    for _, chips, _ in found["lines"]:
        shares = [float(note.removesuffix("\u00a0%")) for *_, note in chips]
        assert shares == sorted(shares, reverse=True)


def test_a_lookup_shows_the_earlier_place_above_the_end_of_the_text():
    made = evidence_traces.lookup()
    tokens = [token.text for token in made.header.prompt.tokens]
    tokens += [token.text for step in made.steps[:2] for token in step.emitted]
    (_, earlier), (_, now) = rows(part(evidence_traces.lookup, "lines", "Where it was found"))
    assert [text for text, mark in earlier if mark == "same"] == [label(text) for text in tokens[4:6]]
    assert [text for text, mark in earlier if mark == "from"] == [label(text) for text in tokens[6:9]]
    assert [text for text, mark in now if mark == "same"] == [label(text) for text in tokens[-2:]]
    assert [mark for _, mark in now][-3:] == [token.status for token in made.steps[2].draft]
    policy = part(evidence_traces.lookup, "facts", "How long a draft may be")
    assert policy["items"][0] == ["K in force", "3"]


def test_a_block_shows_what_its_pass_read_above_what_it_guessed():
    made = evidence_traces.block()
    step, (*_, last) = made.steps[0], made.header.prompt.tokens
    (_, read), (_, guessed) = rows(part(evidence_traces.block, "lines", "Filled in one pass"))
    assert read == [[label(last.text), ""], *[["mask", "off"]] * 8]
    assert guessed == [[label(token.text), token.status] for token in step.draft]


def test_where_the_last_tokens_place_guesses_too_there_is_a_mask_less():
    (_, read), (_, guessed) = rows(part(evidence_traces.block_in_turn, "lines", "Filled in one pass"))
    assert [len(read), len(guessed)] == [4, 4]


def test_a_block_says_whether_a_guess_knew_the_one_before_and_how_many_slots_are_used():
    made = (evidence_traces.block, evidence_traces.block_in_turn)
    assert [part(make, "lines", "Filled in one pass")["note"] for make in made] == [
        "No guess saw another one. The draft takes the first 4 of 8 slots.",
        "Each token was then chosen in turn, knowing the one before it.",
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"block": 3}, {"block": "8"}, {"masks": None}, {"masks": 9}, {"masks": 2}, {"filled": ["together"]}],
    ids=str,
)
def test_a_block_that_cannot_be_is_not_shown(wrong):
    step = evidence_traces.block().steps[0]
    told = replace(step, evidence={**step.evidence, **wrong})
    assert show_making(told, ["a"] * step.context_length) is None


def drafted_notes(make):
    """The notes beside the drafted tokens of the last step, below the place where they stood before."""
    (found,) = (part for part in made_of(make())[-1]["parts"] if part["title"] == "Where it was found")
    return [note for *_, note in found["lines"][1][1]][-3:], found["note"]


def test_counts_stand_beside_the_drafted_tokens_and_are_explained():
    notes, below = drafted_notes(evidence_traces.suffix)
    assert notes == ["3/4", "2/3", "2/2"]
    assert below.endswith("how often it came there / how often any token did.")
    assert drafted_notes(evidence_traces.lookup)[0] == ["", "", ""]


@pytest.mark.parametrize(
    "wrong", [{"counts": [5, 2, 2]}, {"totals": [4, 3]}, {"counts": "xyz"}, {"totals": [4, 3, -2]}]
)
def test_counts_that_cannot_be_are_not_shown(wrong):
    step = evidence_traces.suffix().steps[-1]
    told = replace(step, evidence={**step.evidence, **wrong})
    labels = ["a"] * step.context_length
    shown = as_json(show_making(told, labels))["parts"]
    (found,) = (part for part in shown if part["title"] == "Where it was found")
    assert not any(note for _, chips, _ in found["lines"] for *_, note in chips)


def test_each_step_of_a_hybrid_says_who_proposed():
    who = [
        part["items"] for made in made_of(evidence_traces.hybrid()) for part in made["parts"] if "Who" in part["title"]
    ]
    assert who == [[["drafter", "fable-draft"]], [["drafter", "fable-draft"]], [["drafter", "Suffix decoding"]]]


def test_estimates_stand_beside_the_policy_and_survival_is_their_product():
    told = {"k": 3, "policy": "survival", "acceptance": [0.9, 0.5, 0.8, 1.0], "cost_ratio": 0.21}
    items = dict(part(on_a_chain(told), "facts", "How long a draft may be")["items"])
    assert items["estimated acceptance"].replace("\u00a0", " ") == "90 %, 50 %, 80 %, 100 %"
    assert items["estimated survival"].replace("\u00a0", " ") == "90 %, 45 %, 36 %, 36 %"
    assert items["cost of a drafted token"].replace("\u00a0", " ") == "21 % of a target check"


def test_early_exit_marks_the_layers_used():
    ((_, chips),) = rows(part(evidence_traces.early_exit, "lines", "Layers used"))
    assert [text for text, _ in chips] == [str(number) for number in range(1, 17)]
    assert [int(text) - 1 for text, mark in chips if mark == "on"] == [0, 1, 2, 3, 12, 13, 14, 15]


def test_rounds_say_who_drafted_for_whom_and_what_became_of_it():
    shown = rows(part(evidence_traces.staged, "lines", "Rounds inside the draft"))
    assert shown[0][0] == "Prompt lookup for fable-draft-tiny"
    assert [mark for _, mark in shown[0][1]] == ["accepted", "rejected", "ignored", "resampled"]
    assert [mark for _, chips in shown[1:-1] for _, mark in chips] == ["accepted", "bonus", "plain"]
    calls = part(evidence_traces.staged, "facts", "What drafting cost")
    assert calls["items"] == [["forwards of fable-draft", "2"], ["forwards of fable-draft-tiny", "5"]]


def test_rounds_end_with_what_was_handed_to_the_target():
    step = evidence_traces.staged().steps[0]
    found = part(evidence_traces.staged, "lines", "Rounds inside the draft")
    name, chips, _ = found["lines"][-1]
    assert name == "proposed to the target"
    assert chips == [[label(token.text, token.bytes), "", ""] for token in step.draft]
    assert found["lead"].startswith("The marks show")
    assert found["note"] == ""


def test_rounds_of_one_drafter_name_it_once():
    told = evidence_traces.staged().steps[0].evidence
    told = {**told, "rounds": [{**told["rounds"][0], "by": "prompt_lookup"}] * 3, "calls": {"prompt_lookup": 0}}
    make = on_a_chain(told)
    found = part(make, "lines", "Rounds inside the draft")
    assert [name for name, *_ in found["lines"][:-1]] == ["round 1", "round 2", "round 3"]
    assert found["lead"].startswith("Prompt lookup for fable-draft-tiny. ")
    assert not any(part["title"] == "What drafting cost" for part in first(make)["parts"])


def test_lookahead_shows_window_guesses_pool_and_what_was_added():
    titles = [part["title"] for part in first(evidence_traces.lookahead)["parts"]]
    assert titles == ["The tree", "The window", "Guesses from the pool", "Added to the pool last time", "The pool"]
    assert [len(chips) for _, chips in rows(part(evidence_traces.lookahead, "lines", "The window"))] == [5, 5]


def test_both_tokenisations_spell_one_text():
    found = part(evidence_traces.cross_vocabulary, "lines", "The same text in both vocabularies")
    (_, draft), (_, target) = rows(found)
    assert "".join(text for text, _ in draft) == "".join(text for text, _ in target)
    assert found["aligned"]
    assert [mark for _, mark in target] == ["accepted", "accepted", "rejected"]
    known = dict(part(evidence_traces.cross_vocabulary, "facts", "Between the vocabularies")["items"])
    assert "took back 1 token (“␣the”)" in known["at the boundary"]


@pytest.mark.parametrize(
    ("verdict", "mark"), [("kept", "accepted"), ("refused", "rejected"), ("waiting", ""), ("odd", None)]
)
def test_a_reasoning_step_is_shown_with_its_grade_and_threshold(verdict, mark):
    events = traces.events_of(evidence_traces.reasoning())
    step = next(event for event in events if event["event"] == "step")
    step["evidence"]["verdict"] = verdict
    made = made_of(traces.read_events(events))[0]
    if mark is None:
        assert made is None
        return
    passage, facts = made["parts"]
    assert (passage["mark"], passage["text"]) == (mark, step["evidence"]["step"]["text"].replace("\n", "⏎\n"))
    words = "on average the target gives a token 66\u00a0%; needed: 37\u00a0%"
    assert ["grade", words] in facts["items"]


@pytest.mark.parametrize(
    ("judged_by", "given", "threshold", "words"),
    [
        ("mean_logprob", -5.436e-05, -0.1, "gives a token >99.9\u00a0%; needed: 90\u00a0%"),
        ("mean_logprob", 1e9, -1e9, "gives a token 100\u00a0%; needed: 0\u00a0%"),
        ("score", 6.4321, 7.0, "6.4 of 9; needed: 7.0"),
        ("of_tomorrow", -5.436e-05, 2.0, "-0.000; needed: 2.000"),
    ],
)
def test_a_grade_reads_as_plain_words(judged_by, given, threshold, words):
    told = {"verdict": "kept", "grade": given, "threshold": threshold, "judged_by": judged_by, "tokens": 4}
    assert dict(part(on_a_chain(told), "facts", "The grade")["items"])["grade"].endswith(words)


# ---- from any file ------------------------------------------------------------------------------------------------

HOSTILE = "<script>\u202e\x1b[31m" + "x" * 5_000
JUNK = [None, True, -1, 10**12, 0.5, -1e9, "", HOSTILE, [], {}, [HOSTILE], {"id": 3}, {"text": HOSTILE}, [[{"id": 1}]]]


def junk(chance: random.Random, depth: int = 0):
    if depth < 3 and chance.random() < 0.4:
        return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    return chance.choice(JUNK)


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


@every_evidence
def test_any_evidence_gives_harmless_bounded_parts_and_no_error(make):
    chance = random.Random(1)
    events = traces.events_of(make())
    steps = [event for event in events if event["event"] == "step"]
    step = next(event for event in steps if event["evidence"])
    known = dict(step["evidence"])
    for _ in range(50):
        step["evidence"] = {name: junk(chance) if chance.random() < 0.5 else value for name, value in known.items()}
        for made in filter(None, made_of(traces.read_events(events))):
            assert not any(sign in text for text in texts(made) for sign in "\u202e\x1b")
            for shown in made["parts"]:
                assert len(shown.get("lines", [])) <= MOST_LINES
                assert all(len(chips) <= MOST_CHIPS for _, chips, _ in shown.get("lines", []))
            assert len(json.dumps(made)) < 200_000


@every_evidence
def test_a_step_without_evidence_tells_of_its_tree_alone(make):
    events = traces.events_of(make())
    for event in events:
        if event["event"] == "step":
            event["evidence"] = {}
    for made in filter(None, made_of(traces.read_events(events))):
        assert [part["kind"] for part in made["parts"]] == ["tree"]


@every_evidence
def test_the_panel_depends_on_the_evidence_and_not_on_the_method(make):
    events = traces.events_of(make())
    for event in events:
        if event["event"] == "step":
            event["settings"]["method"] = "a_method_of_tomorrow"
    assert made_of(traces.read_events(events)) == made_of(make())


def test_a_tree_of_sixty_nodes_costs_the_page_few_bytes():
    assert len(json.dumps(first(evidence_traces.wide_tree), ensure_ascii=False)) < 9_000


# ---- numbers and words for trees and lossy rules ------------------------------------------------------------------


def test_rates_of_a_tree_carry_a_note_and_those_of_a_chain_none():
    for make, has_note in ((evidence_traces.tree, True), (traces.chain, False)):
        numbers = json.loads(Feed.from_trace(make(), "run").message(0, None))["numbers"]
        shown = dict(zip(METRICS, numbers, strict=True))
        assert ("at most one path of a tree" in shown["acceptance_rate"]) == has_note
        assert "tree" not in shown["tokens_per_target_call"]


def test_acceptance_by_depth_of_trees_is_the_share_of_steps_whose_path_reached_that_depth():
    made = traces.tree()
    joint = [rates["joint"] for rates in metrics(count(made))["acceptance_by_depth"]]
    reached = [sum(token.status == "accepted" for token in step.draft) for step in made.steps]
    deepest = [max(token.depth for token in step.draft) for step in made.steps]
    for depth, share in enumerate(joint, 1):
        drafted = [kept for kept, deep in zip(reached, deepest, strict=True) if deep >= depth]
        assert share == sum(kept >= depth for kept in drafted) / len(drafted)


@pytest.mark.parametrize(
    ("lossless", "moved", "says"),
    [
        (False, 0.123, "Here it moves 12 % of the probability away from the target's"),
        (False, 0.0, "here it changes nothing"),
        (False, None, ""),
        (True, 0.5, ""),
    ],
)
def test_how_far_a_lossy_rule_moves_a_token_is_said(lossless, moved, says):
    step = traces.Builder().chain(changed={"lossless": lossless, "rule": "lenience"}).trace.steps[0]
    words = "".join(lossy_note(step, moved)).replace("\u00a0", " ")
    assert says in words
    assert bool(words) == bool(says)
