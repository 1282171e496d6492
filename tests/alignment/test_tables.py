"""The tables of a shard against slow direct computation: every pattern of kept and cut, one token at a time."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from specviz.alignment.summary import Slice
from specviz.alignment.tables import reasons
from specviz.alignment.tables import shard_tables as tables
from specviz.alignment.tables.columns import COLUMNS
from specviz.alignment.tables.reasons import BEYOND, NO_REASON, OUTSIDE, REASONS
from specviz.alignment.types import KS
from specviz.analysis import whatif
from tests.helpers import analysed_texts

DRAFTS = ("one", "two")
STEP_MS = {"one": tuple(4 + 0.7 * depth + 0.1 * (depth > 3) for depth in range(17))}


def made(texts, **changes):
    return tables.build_tables(
        texts, analysed_texts.shard([text.written.row for text in texts], DRAFTS, step_ms=STEP_MS, **changes)
    )


def rows_of(table, **wanted):
    """The rows as dictionaries whose columns have these values."""
    return [row for row in table.to_dict("records") if all(row[name] == value for name, value in wanted.items())]


# ---- every step by brute force --------------------------------------------------------------------------------------


def walked(keep, readable, k, allowed):
    """(chance, [(start, depth, length)]) for every pattern of kept and cut, by the words of the rule."""
    size = len(keep)
    for pattern in itertools.product((False, True), repeat=size):
        chance = math.prod(a if kept else 1 - a for a, kept in zip(keep, pattern, strict=True))
        steps, at = [], 0
        while chance and at < size:
            depth = 0
            while depth < k and at + depth + 1 < allowed and (at + depth >= size or readable[at + depth]):
                depth += 1
            length = 1
            while length <= min(depth, size - at - 1) and pattern[at + length - 1]:
                length += 1
            steps.append((at, depth, length))
            at += length
        if chance:
            yield chance, steps


@pytest.mark.parametrize(
    ("limit", "finish", "allowed"), [(10**6, "length", 7), (10**6, "eos", 40), (34, "length", 7), (34, "eos", 40)]
)
def test_calls_tokens_and_time_of_every_slice_are_those_of_all_ways_to_cut_the_text(limit, finish, allowed):
    text = analysed_texts.text(0, size=7, drafts=DRAFTS, tags=("a",), limit=limit, finish=finish)
    sums, draft = made([text]).sums, text.drafts["one"]
    slices = {(row["kind"], row["value"]): row for row in rows_of(sums, draft="one") if row["kind"] != "ahead"}
    inside = {
        ("all", "all"): range(7),
        ("tag", "a"): range(7),
        ("depth", "0-15"): range(7),
        ("context", "0-31"): (0, 1),
        ("context", "32-47"): range(2, 7),
        **{("class", name): np.flatnonzero(text.tokens["class"] == name) for name in set(text.tokens["class"])},
    }
    assert slices.keys() == inside.keys()
    for k in (1, 2, 3, 16):
        ways = list(walked(draft["keep"], draft["readable"], k, allowed))
        for key, places in inside.items():
            steps = [(chance, step) for chance, way in ways for step in way if step[0] in places]
            totals = [sum(c * f(step) for c, step in steps) for f in (lambda _: 1, lambda s: s[2], _time)]
            found = [slices[key][name][k - 1] for name in ("calls", "emitted", "time_ms")]
            assert found == pytest.approx(totals, rel=1e-5, abs=1e-6)


def _time(step):
    return STEP_MS["one"][step[1]]


def test_the_whole_text_is_what_the_what_if_says():
    text = analysed_texts.text(3, size=150, drafts=DRAFTS)
    found = made([text])
    outcomes = whatif.every_k(whatif.chances_along_text(text.drafts["one"]["keep"], deepest=16), KS).outcomes
    (row,) = rows_of(found.sums, draft="one", kind="all")
    np.testing.assert_allclose(row["calls"], [each.expected_target_calls for each in outcomes], rtol=1e-6)
    np.testing.assert_allclose(row["emitted"], 150, rtol=1e-6)
    (prompt,) = rows_of(found.prompts, draft="one")
    assert prompt["tokens_per_call"] == pytest.approx(outcomes[3].tokens_per_call, rel=1e-6)
    speedups = 150 * STEP_MS["one"][0] / np.asarray(row["time_ms"])
    assert (prompt["best_k"], prompt["speedup"]) == (1 + speedups.argmax(), pytest.approx(speedups.max()))


def test_tokens_that_every_draft_can_read_are_summed_apart():
    near, far = (analysed_texts.text(2, drafts=(name,), limit=limit) for name, limit in (("one", 49), ("two", 59)))
    text = replace(near, drafts=near.drafts | far.drafts)
    (row,) = rows_of(made([text]).sums, draft="two", kind="all")
    assert (row["num_readable"], row["num_shared"]) == (30, 20)  # contexts 30 to 59, and to 49
    assert row["shared_overlap"] == pytest.approx(far.drafts["two"]["overlap"][:20].sum())


@pytest.mark.parametrize("limit", [10**6, 60])
def test_slices_of_a_kind_add_up_to_the_whole(limit):
    sums = made([analysed_texts.text(n, size=90, drafts=DRAFTS, limit=limit) for n in range(3)]).sums
    for prompt, draft, kind in itertools.product(range(3), DRAFTS, ("class", "depth", "context")):
        (whole,) = rows_of(sums, prompt=prompt, draft=draft, kind="all")
        parts = rows_of(sums, prompt=prompt, draft=draft, kind=kind)
        for name in ("num_tokens", "num_readable", "overlap", "keep", "agreement", "outside", "calls", "emitted"):
            np.testing.assert_allclose(sum(part[name] for part in parts), whole[name], rtol=1e-5)


def test_without_costs_there_is_no_time_and_no_best_k():
    found = made([analysed_texts.text(0, drafts=DRAFTS)])
    (row,) = rows_of(found.prompts, draft="two")
    assert (row["best_k"], math.isnan(row["speedup"])) == (0, True)
    assert all(np.isnan(row["time_ms"]).all() for row in rows_of(found.sums, draft="two", kind="all"))


# ---- columns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_texts", [0, 2])
def test_tables_have_the_columns_that_are_documented_in_their_types(num_texts):
    found = made([analysed_texts.text(n, drafts=DRAFTS) for n in range(num_texts)])
    for name in ("tokens", "prompts", "sums"):
        table = getattr(found, name)
        assert list(table) == list(COLUMNS[name])
        for column, documented in COLUMNS[name].items():
            is_list = documented.type == "list<float>"
            kind = "object" if documented.type.startswith(("list", "string")) else documented.type
            assert table[column].dtype == kind, column
            width = 17 if column.endswith("kept") else 16
            assert not is_list or all((cell.shape, cell.dtype) == ((width,), np.float32) for cell in table[column])


def test_columns_of_slices_are_the_fields_of_a_slice():
    assert list(COLUMNS["slices"]) == list(Slice.__dataclass_fields__)


def test_every_token_row_says_what_the_models_say_there():
    texts = [analysed_texts.text(n, size=20, drafts=DRAFTS, num_ids=10, limit=40) for n in (4, 5)]
    table = made(texts).tokens
    assert len(table["prompt"]) == 2 * 2 * 20
    for text, name, place in itertools.product(texts, DRAFTS, (0, 7, 19)):
        (row,) = rows_of(table, prompt=text.written.row.number, draft=name, place=place)
        wanted = {"context": 30 + place}
        for columns in (text.tokens, text.drafts[name]):
            wanted |= {each: values[place] for each, values in columns.items() if each != "confidence"}
        assert wanted.keys() == row.keys() - {"prompt", "draft", "reason"}
        assert {each: row[each] for each in wanted} == {
            each: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            for each, value in wanted.items()
        }


def test_a_prompt_row_has_the_means_over_readable_tokens():
    text = analysed_texts.text(1, size=50, drafts=DRAFTS, limit=59, tags=("math", "easy"), finish="eos")
    (row,) = rows_of(made([text]).prompts, draft="two")
    draft, read = text.drafts["two"], slice(0, 30)  # contexts 30 to 59
    assert (row["num_tokens"], row["num_readable"], row["num_prompt_tokens"]) == (50, 30, 30)
    assert row["alpha"] == pytest.approx(sum(draft["overlap"][read]) / 30)
    assert row["mean_acceptance"] == pytest.approx(sum(draft["keep"][read]) / 30)
    agree = [text.tokens["most_likely"][place] == draft["draft_most_likely"][place] for place in range(30)]
    assert row["greedy_agreement"] == pytest.approx(sum(agree) / 30)
    assert (row["id"], row["tags"], row["line"], row["finish"]) == ("row 1", "math|easy", 2, "eos")
    assert (row["source"], row["exact"], row["prompt_text"]) == ("sampled", True, "Once")


def test_a_draft_that_reads_nothing_has_no_alpha():
    (row,) = rows_of(made([analysed_texts.text(0, drafts=DRAFTS, limit=3)]).prompts, draft="one")
    assert (row["num_readable"], math.isnan(row["alpha"])) == (0, True)
    assert row["tokens_per_call"] == 1


def test_confidence_is_summed_over_texts():
    texts = [analysed_texts.text(n, drafts=DRAFTS) for n in range(3)]
    found = made(texts).confidence
    np.testing.assert_allclose(found["two"], sum(text.drafts["two"]["confidence"] for text in texts))


# ---- classes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([" ", "\n\n", "\t"], ["whitespace"] * 3),
        ([".", ",", ' "', "(", ")", " —", "!?"], ["punctuation"] * 7),
        (["7", " 1984", "3.5", "½"], ["digit"] * 4),
        (["{", " ==", "self_", "[:", "()", "camelCase", " #", "::<"], ["code"] * 8),
        (["The", " met", " London", ".", " He"], ["word", "word", "name", "punctuation", "word"]),
        ([" went", ".", ' "', "She"], ["word", "punctuation", "punctuation", "word"]),
        ([" said", " I", " I'm", " Ich"], ["word", "word", "word", "name"]),
        (["\n", "Fox", ":", " Grapes"], ["whitespace", "word", "punctuation", "word"]),
        (["<F0 9F>", "caf<C3>", "<id 7>", ""], ["rare", "rare", "special", "special"]),
        (["été", " 日本", "don't"], ["word"] * 3),
    ],
)  # fmt: skip
def test_tokens_fall_into_the_classes_that_are_described(texts, wanted):
    found = tables.classify(texts, range(len(texts)), special_ids=(), num_ids=1000)
    assert found.tolist() == wanted


def test_special_ids_come_before_all_and_rare_ones_after_names():
    texts = [" a", " b", " Bo", "</s>"]
    found = tables.classify(texts, [5, 95, 96, 2], special_ids={2}, num_ids=100)
    assert found.tolist() == ["word", "rare", "name", "special"]


# ---- why p and q part -----------------------------------------------------------------------------------------------


def test_every_place_has_the_first_reason_that_fits():
    #            beyond equal outside certain sure tie   same  spread
    columns = {
        "overlap": [0.0, 1.00, 0.50, 0.50, 0.50, 0.50, 0.50, 0.50],
        "outside": [0.9, 0.00, 0.26, 0.25, 0.00, 0.00, 0.00, 0.00],
        "readable": [False] + [True] * 7,
        "most_likely": [1] * 8,
        "most_likely_p": [0.6, 0.60, 0.60, 0.60, 0.40, 0.39, 0.30, 0.41],
        "draft_most_likely": [2, 2, 2, 2, 2, 2, 1, 2],
        "draft_most_likely_q": [0.0, 0.90, 0.90, 0.90, 0.55, 0.50, 0.50, 0.50],
        "draft_most_likely_p": [0.3, 0.10, 0.10, 0.10, 0.30, 0.30, 0.30, 0.30],
    }
    columns = {name: np.array(values) for name, values in columns.items()}
    assert reasons.find_reasons(columns).tolist() == [BEYOND, NO_REASON, OUTSIDE, 2, 3, 4, 5, 6]
    lost = reasons.lost_by_reason(columns)
    np.testing.assert_allclose(lost, [1, 0.26 + 0.25, 0.24 + 0.25, 0.5, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("most_likely_p", "its_p", "is_tie"),
    [(0.4, 0.31, True), (0.4, 0.29, False), (0.08, 0.04, True), (0.08, 0.03, False), (0.02, 0.001, False)],
)
def test_a_near_tie_is_close_in_points_and_by_half(most_likely_p, its_p, is_tie):
    """Among many small probabilities all are within 0.1 of each other."""
    columns = {
        "overlap": 0.5, "outside": 0.0, "readable": True, "most_likely": 1, "most_likely_p": most_likely_p,
        "draft_most_likely": 2, "draft_most_likely_q": its_p, "draft_most_likely_p": its_p,
    }  # fmt: skip
    (found,) = reasons.find_reasons({name: np.array([value]) for name, value in columns.items()})
    assert [*REASONS][found] == ("near-tie" if is_tie else "different first choices, neither sure")


def test_all_that_is_lost_falls_to_some_reason_and_the_missing_vocabulary_to_its_own():
    for number, (limit, num_ids) in enumerate([(10**6, 12), (10**6, 9), (50, 9)]):
        text = analysed_texts.text(number, size=60, limit=limit, num_ids=num_ids)
        draft = text.drafts["one"]
        lost = reasons.lost_by_reason(tables.build_tables([text], analysed_texts.shard([text.written.row])).tokens)
        assert lost.sum() == pytest.approx((1 - draft["overlap"]).sum(), rel=1e-5)
        assert lost[OUTSIDE] == pytest.approx(draft["outside"][draft["readable"]].sum(), rel=1e-5)
        assert lost[BEYOND] == pytest.approx((~draft["readable"]).sum())


def test_reasons_have_different_names_and_words():
    assert len(set(REASONS.values())) == len(REASONS)
