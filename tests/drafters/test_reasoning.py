"""Whole reasoning steps: grades by their formulas, kept whole or not at all, silence after a refusal, lossy."""

from functools import cache

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import EMPTY, chain
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.drafters.method import CHAIN_RULES, TREE_RULES, Part, Parts
from specviz.drafters.reasoning import METHOD, ReasoningDrafter, Watch
from specviz.drafters.reasoning.grading import QUESTION, MeanLogProbability
from specviz.errors import SpecvizError
from specviz.models.tokens import TokenText
from specviz.prompts import prompts_file
from specviz.rules.lossy import Graded
from specviz.session.setup import gather
from specviz.session.workbench import workbench
from specviz.ui.choices import FIRST_SEED
from tests.helpers.tiny_models import tiny, tiny_tokenizer
from tests.helpers.toys import TableLM, plan_of, target_distribution, text_distribution, total_variation

EXACT = 1e-12
RULE: Rule = Graded()
PROMPT = [0, 1, 3, 1]


class Letters:
    """The ids 0 to 3 as "a", "b", a line break, and two of them; 4 ends the text."""

    eos_ids = frozenset([4])
    pieces = (b"a", b"b", b"\n", b"\n\n", b"</s>")

    def bytes_of(self, token):
        return self.pieces[token]


def over_tables(threshold=-20.0, delimiter=b"\n\n", vocab_size=5):
    judge = MeanLogProbability(TableLM(1, vocab_size), threshold)
    return ReasoningDrafter(TableLM(2, vocab_size), Letters(), delimiter, judge)


def ends(text):
    """Whether a reasoning step of these tokens is at its end, by its whole text."""
    return b"\n\n" in b"".join(map(Letters().bytes_of, text)) or text[-1] in Letters.eos_ids


@pytest.mark.parametrize("prompt", [[0, 1], [0, 3], [0, 2]])
def test_a_reasoning_step_ends_behind_its_delimiter_or_at_the_longest(prompt):
    raw_before = b"\n" if prompt[-1] == 2 else b""
    lengths = set()
    for seed in range(60):
        draft = over_tables().draft(Context(list(prompt), Sampling(), Seeded(seed), 5), 6)
        for size in range(1, len(draft) + 1):
            text = raw_before + b"".join(map(Letters().bytes_of, draft.tokens[:size]))
            is_end = b"\n\n" in text or draft.tokens[size - 1] == 4
            assert is_end == (size == len(draft)) or size == len(draft) == 6
        lengths.add(len(draft))
    assert {0, 1, 6} <= lengths  # 0: it was nothing but the end of the text


def test_it_is_written_from_the_drafts_own_distribution():
    def experiment(draws):
        return over_tables().draft(Context(list(PROMPT), Sampling(), draws, 5), 3).tokens

    expected, open_texts = {}, {(): 1.0}
    for size in range(1, 4):
        grown = {}
        for text, chance in open_texts.items():
            row = TableLM(2, 5).row([*PROMPT, *text]).softmax(-1)
            grown |= {(*text, token): chance * float(q) for token, q in enumerate(row)}
        expected |= {text: chance for text, chance in grown.items() if ends(text) or size == 3}
        open_texts = {text: chance for text, chance in grown.items() if not ends(text)}
    expected[()] = expected.pop((4,))  # the end of the text is no reasoning step
    assert total_variation(distribution(experiment), expected) < EXACT


def test_the_mean_log_probability_is_the_targets_own():
    for seed in range(10):
        if not len(draft := over_tables().draft(Context(list(PROMPT), Sampling(0.7), Seeded(seed), 5), 5)):
            continue
        rows = [TableLM(1, 5).row([*PROMPT, *draft.tokens[:node]]) for node in range(len(draft))]
        logs = [float(row.log_softmax(-1)[token]) for row, token in zip(rows, draft.tokens, strict=True)]
        assert abs(draft.evidence["grade"] - sum(logs) / len(logs)) < 1e-6
        assert draft.evidence["verdict"] == "kept"
        assert draft.evidence["step"]["text"].encode() == b"".join(map(Letters().bytes_of, draft.tokens))
        assert draft.evidence["tokens"] == len(draft)


def test_the_threshold_decides():
    context = Context(list(PROMPT), Sampling(), Seeded(3), 5)
    grade = over_tables().draft(context, 5).evidence["grade"]
    kept = over_tables(grade - 1e-6).draft(context, 5)
    refused = over_tables(grade + 1e-6).draft(context, 5)
    assert kept.evidence["verdict"] == "kept"
    assert len(kept) > 0
    assert refused.evidence["verdict"] == "refused"
    assert len(refused) == 0
    assert refused.evidence["step"] == kept.evidence["step"]
    assert refused.evidence["tokens"] == len(kept)


@pytest.mark.parametrize("delimiter", [b"\n\n", b"\n"])
def test_after_a_refusal_it_waits_for_the_delimiter(delimiter):
    """The target writes 0 2 2 1 3 4 ...; where a line break ends a step, the first one is enough."""
    drafter, tokens = over_tables(0.0, delimiter), [0, 1]
    verdicts = []
    for token in (0, 2, 2, 1, 3, 4):
        draft = drafter.draft(Context(tokens, Sampling(), Seeded(3), 5), 4)
        verdicts.append(draft.evidence["verdict"])
        tokens.append(token)
    expected = {
        b"\n\n": ["refused", "waiting", "waiting", "refused", "waiting", "refused"],
        b"\n": ["refused", "waiting", "refused", "refused", "waiting", "refused"],
    }
    assert verdicts == expected[delimiter]


def test_a_delimiter_may_have_begun_before_the_refusal():
    drafter, tokens = over_tables(0.0), [0, 2]  # the text ends with one line break already
    assert drafter.draft(Context(tokens, Sampling(), Seeded(4), 5), 4).evidence["verdict"] == "refused"
    tokens.append(2)
    assert drafter.draft(Context(tokens, Sampling(), Seeded(4), 5), 4).evidence["verdict"] == "refused"


def test_several_tokens_at_once_and_another_text_are_followed():
    drafter, tokens = over_tables(0.0), [0, 1]
    assert drafter.draft(Context(tokens, Sampling(), Seeded(3), 5), 4).evidence["verdict"] == "refused"
    assert drafter.draft(Context(tokens, Sampling(), Seeded(3), 5), 4).evidence["verdict"] == "waiting"
    other = drafter.draft(Context([1, 1], Sampling(), Seeded(3), 5), 4)
    assert other.evidence["verdict"] == "refused"
    tokens += [0, 3, 0, 1]
    assert drafter.draft(Context(tokens, Sampling(), Seeded(3), 5), 4).evidence["verdict"] == "refused"


@pytest.mark.parametrize(
    ("tokens", "then", "found"),
    [([0], [2, 2], [False, True]), ([2], [2, 0], [True, False]), ([3], [2, 2], [False, True]), ([0], [3], [True])],
)
def test_the_watch_sees_a_delimiter_that_is_cut_in_two(tokens, then, found):
    watch = Watch(Letters(), b"\n\n")
    watch.begin(tokens)
    assert [watch.ends_with(token) for token in then] == found


def test_the_rule_keeps_what_was_graded_and_nothing_else():
    q = torch.full((3,), 1 / 3, dtype=torch.float64)
    p = torch.tensor([[0.0, 0.5, 0.5], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    graded = chain([0, 1], [q, q], evidence={"verdict": "kept"})
    assert RULE.supports(graded)
    assert RULE.supports(EMPTY)
    assert not RULE.supports(chain([0, 1], [q, q]))
    assert not RULE.supports(chain([0, 1], [q, q], evidence={"verdict": "refused"}))
    for seed in range(20):
        verdict = RULE(graded, p, Seeded(seed), 5)
        assert (verdict.path, verdict.token, verdict.kind) == ((0, 1), 0, "bonus")
        assert all(check.accepted for check in verdict.checks)


def test_the_rules_distribution_is_the_drafts_and_it_says_so():
    p, q = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    assert (RULE.one_step_distribution(p, q) - q).abs().max() < EXACT
    assert (RULE.one_step_accepted(p, q) - q).abs().max() < EXACT
    assert not RULE.lossless
    assert METHOD.rules == ("graded",)
    assert "graded" not in (*CHAIN_RULES, *TREE_RULES)
    draft = chain([0, 1], [q[:3], q[:3]], evidence={"verdict": "kept"})
    assert RULE.length_distribution(draft, p[:3].repeat(3, 1)).tolist() == [0, 0, 1]


def test_the_text_is_the_drafts_where_everything_is_kept_and_the_targets_where_nothing_is():
    for threshold, is_targets in ((-20.0, False), (0.0, True)):
        plan = plan_of(TableLM(1, 3), over_tables(threshold, vocab_size=3), 2, Sampling(), RULE)
        mine = text_distribution(plan, (0, 1), 2)
        distance = total_variation(mine, target_distribution(TableLM(1, 3), (0, 1), 2, Sampling()))
        assert distance < EXACT if is_targets else distance > 1e-2


# ---- real models ----------------------------------------------------------------------------------------------------


def parts_of(tokenizer=None):
    tokenizer = tokenizer or tiny_tokenizer()
    text = TokenText(tokenizer)
    big = tiny("llama", vocab_size=text.num_ids, seed=1)
    target = Part("target", CachedLM(big, 256), lambda: CachedLM(big, 256), text)
    return Parts(target, Part("draft", CachedLM(tiny("llama", vocab_size=text.num_ids, layers=1), 256), None, text))


def test_the_grade_that_is_asked_for_is_the_mean_over_the_digits():
    parts = parts_of()
    drafter = METHOD.build(parts, METHOD.validate({"judged_by": "score", "least_grade": 0.0}))
    text, tokens = parts.target.text, parts.target.text.encode("the fox said", special=False)
    draft = drafter.draft(Context(tokens, Sampling(), Seeded(1), text.num_ids), 8)
    asked = [*tokens, *draft.tokens, *text.encode(QUESTION, special=False)]
    row = parts.target.lm.model(torch.tensor([asked])).logits[0, -1].detach().softmax(-1)
    digits = {
        token: int(text.bytes_of(token)) for token in range(text.num_ids) if text.bytes_of(token).strip().isdigit()
    }
    digits = {token: value for token, value in digits.items() if len(text.bytes_of(token).strip()) == 1}
    expected = sum(value * row[token] for token, value in digits.items()) / sum(row[token] for token in digits)
    assert len(digits) >= 10
    assert abs(draft.evidence["grade"] - float(expected)) < 1e-4
    assert draft.evidence["threshold"] == 0.0
    assert draft.evidence["judged_by"] == "score"


def test_a_target_without_digits_cannot_be_asked():
    class Wordless(TokenText):
        def bytes_of(self, token):
            return super().bytes_of(token).replace(b"7", b"x")

    target = parts_of().target
    without = Part("target", target.lm, target.another, Wordless(target.text.tokenizer))
    with pytest.raises(SpecvizError, match="judged_by must be mean_logprob"):
        METHOD.build(Parts(without, parts_of().draft), METHOD.validate({"judged_by": "score"}))


@pytest.mark.parametrize("judged_by", ["mean_logprob", "score"])
def test_what_grading_costs_is_counted_as_the_targets_work(judged_by):
    parts = parts_of()
    drafter = METHOD.build(parts, METHOD.validate({"judged_by": judged_by, "threshold": -20.0, "least_grade": 0.0}))
    prompt = parts.target.text.encode("the fox said", special=False)
    plan = plan_of(parts.target.lm, drafter, 12, Sampling(), RULE)
    steps = list(speculate(prompt, lambda: plan, Seeded(1), max_new_tokens=40))
    graded = [step for step in steps if step.draft.evidence.get("grade") is not None]
    assert len(graded) > 1
    assert all(step.target_work.calls == 1 + (step in graded) for step in steps)
    assert all(step.verdict.path == tuple(range(len(step.draft))) for step in steps)


def test_a_text_that_leaves_no_room_for_the_question_gets_no_draft():
    parts = parts_of()
    drafter = METHOD.build(parts, METHOD.validate({"judged_by": "score"}))
    room = 256 - len(parts.target.text.encode(QUESTION, special=False))
    for num_tokens, is_silent in ((room, True), (room - 3, False)):
        context = Context([5] * num_tokens, Sampling(), Seeded(1), 320)
        draft = drafter.draft(context, 8)
        assert (not draft.evidence) == is_silent


@cache
def graded_on(prompt, temperature, seed):
    """(verdict, text) of every reasoning step of the bundled pair with the default settings, and the steps."""
    pool = workbench().pool
    target, draft = pool.load("fable-target"), pool.load("fable-draft")
    setup, lm = gather(METHOD, {}, target, draft, pool), target.cached_lm()
    plan = plan_of(lm, setup.drafter(lm), setup.k(4), Sampling(temperature), RULE)
    tokens = target.text.encode(prompt)
    steps = list(speculate(tokens, lambda: plan, Seeded(seed), max_new_tokens=60, eos_ids=target.text.eos_ids))
    evidence = [step.draft.evidence for step in steps if step.draft.evidence]
    return [(each["verdict"], each["step"]["text"]) for each in evidence], steps


def arithmetic():
    kind = next(kind for kind in prompts_file()["kinds"] if kind["name"] == "arithmetic")
    return [prompt["text"] for prompt in kind["prompts"]]


def test_on_the_arithmetic_prompts_some_are_kept_and_some_refused():
    verdicts = {verdict for prompt in arithmetic() for verdict, _ in graded_on(prompt, 1.0, FIRST_SEED)[0]}
    assert {"kept", "refused", "waiting"} <= verdicts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_first_ready_sum_shows_a_kept_and_a_refused_one_at_the_pages_first_seed(temperature):
    """What a person sees who presses Run: nothing is set but the method and the example."""
    graded, _ = graded_on(arithmetic()[0], temperature, FIRST_SEED)
    judged = [each for each in graded if each[0] != "waiting"]
    assert judged[0] == ("kept", "units 5 + 5 = 10, write 0 carry 1\n\n")
    assert judged[1][0] == "refused"


def test_the_end_of_the_text_alone_is_never_handed_over():
    """Kept at every threshold before: it was all that the sums kept."""
    for prompt in arithmetic():
        graded, steps = graded_on(prompt, 1.0, FIRST_SEED)
        assert "<|endoftext|>" not in {text for _, text in graded}
        assert steps[-1].finish == "eos"
        assert steps[-1].verdict.kind == "plain"
