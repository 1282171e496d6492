"""What a lossy draft costs in quality.

It is the change in the text's probability, rule by rule, and the share of problems that are solved where whole
reasoning steps come from the draft. Lossless rules stand beside the others: they change nothing, but for chance.
"""

import re
import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import cycle, islice
from operator import add, mul
from random import Random
from typing import NamedTuple

from specviz.bench.claims import measure_claims, measure_poor_cases, span
from specviz.bench.contenders import BASELINE
from specviz.bench.report import BenchProgress, table
from specviz.checks.end_to_end import EndToEnd, end_to_end
from specviz.checks.prove import bundled_prompts
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.models.catalog import MODELS, REAL, chats, default_pair
from specviz.models.files.hub import is_here
from specviz.request import Request
from specviz.rules import ANY_CHAIN
from specviz.session.setup import gather
from specviz.session.whole_run import activate, whole_run
from specviz.session.workbench import Workbench, workbench
from specviz.trace import Trace
from specviz.trace.counters import wilson
from specviz.trace.metrics import count

K = 4
NUM_TOKENS = 1_024  # of each rule
SEED = 21  # no bundled model was trained on a sum of this seed
NUM_SUMS = 40
MOST_SUM_TOKENS = 140
NUM_WORD_PROBLEMS = 20
MOST_WORD_TOKENS = 60
WORD_PROBLEMS = (
    ("Tom has {a} apples and buys {b} more. How many apples does he have now?", add),
    (
        "Mia has {sum} red balls. She gives {a} of them to Ben. How many red balls does she have left?",
        lambda a, b: b,
    ),
    ("There are {a} bags with {b} shells in each bag. How many shells are there in all?", mul),
    (
        "A farmer has {sum} eggs and {b} of them break. How many whole eggs does he have?",
        lambda a, b: a,
    ),
    ("Each of {a} children reads {b} books. How many books is that together?", mul),
)
THRESHOLDS = (None, 0.0, -0.3, -0.7, -1.5, -3.0, -20.0)
RULE_HEADS = [
    "rule",
    "by its promise",
    "wrong share in one step",
    "change of log-probability per token, nats",
]
ANSWER_HEADS = ["least log-probability of a step", "right (95 %)", "drafted steps taken (95 %)"]


def measure_quality(bench: Workbench) -> Iterator[BenchProgress]:
    """Measures texts of the bundled pair by every rule that judges plain drafts, then all exams at every threshold.

    Each result takes one text or one answer; changes are against the target's own text of the same seed. The caller
    holds the engine while it asks for the next. Raises SpecvizError.
    """
    exams = drawn_exams()
    done = NUM_TOKENS * (1 + len(ANY_CHAIN))
    total = done
    for exam in exams:
        total += len(THRESHOLDS) * len(exam.problems) * exam.most_tokens
    rules = yield from _measure_rules(bench, total)
    tables = [(RULE_HEADS, rules)]
    for exam in exams:
        rows = []
        for threshold in THRESHOLDS:
            answers = []
            for problem in exam.problems:
                yield BenchProgress(done, total, exam.name, (*tables, (ANSWER_HEADS, [*rows])))
                answers.append(solve(exam, problem, threshold, bench))
                done += exam.most_tokens
            rows.append(answers_row(threshold, answers))
        tables.append((ANSWER_HEADS, rows))
    yield BenchProgress(total, total, "", tuple(tables))


def _measure_rules(bench: Workbench, total: int) -> Generator[BenchProgress, None, list[list[str]]]:
    """Returns a row for each rule. The target writes alone first: a rule then has nothing to judge."""
    target_name, draft_name = default_pair()
    large = bench.pool.load(target_name)
    small = bench.pool.load(draft_name, as_draft=True)
    prompts = bundled_prompts(large)
    any_rule, *_ = ANY_CHAIN.values()
    rows: list[list[str]] = []
    alone: tuple[float, ...] = ()
    for place, rule in enumerate((None, *ANY_CHAIN.values())):
        method = BASELINE if rule is None else "draft_model"
        doing = "the target alone" if rule is None else rule.title
        pair = gather(METHODS[method], {}, large, small)
        for texts in end_to_end(pair, rule or any_rule, prompts, Sampling(), K, NUM_TOKENS):
            done = NUM_TOKENS * place + texts.done
            yield BenchProgress(done, total, doing, ((RULE_HEADS, [*rows]),))
        if rule is None:
            alone = texts.log_probs
        else:
            rows.append(_rule_row(rule, texts, alone))
    return rows


def _rule_row(rule: Rule, texts: EndToEnd, alone: Sequence[float]) -> list[str]:
    """A row of the table of rules. alone: the mean log-probabilities of the target's own texts."""
    pairs = zip(texts.log_probs, alone, strict=False)
    changes = [with_draft - without_draft for with_draft, without_draft in pairs]
    promise = "lossless" if rule.lossless else "lossy"
    wrong = statistics.fmean(texts.distances)
    return [rule.title, promise, f"{wrong:.1%}", span(changes, "+.2f")]


class Exam(NamedTuple):
    """Problems for a target model and a draft model to solve."""

    name: str
    pair: tuple[str, str]
    problems: Sequence[tuple[str, int]]  # each with its result
    most_tokens: int  # of an answer
    params: Mapping[str, str] = {}  # of the method


def drawn_exams() -> list[Exam]:
    """Sums for the bundled pair; word problems for the real one where it is on this machine."""
    exams = [Exam("sums", default_pair(), drawn_sums(), MOST_SUM_TOKENS)]
    if is_here(REAL):
        pair = (REAL, MODELS[REAL].drafts[0])
        params = {"delimiter": "line"}
        exams.append(Exam("word problems", pair, drawn_word_problems(), MOST_WORD_TOKENS, params))
    return exams


def drawn_sums() -> list[tuple[str, int]]:
    """Sums of three-digit numbers, always the same ones."""
    random = Random(SEED)
    problems = []
    for _ in range(NUM_SUMS):
        a = random.randrange(100, 1000)
        b = random.randrange(100, 1000)
        problems.append((f"Sum: {a} + {b}\n\n", a + b))
    return problems


def drawn_word_problems() -> list[tuple[str, int]]:
    """Problems of one operation with one-digit numbers, always the same ones."""
    random = Random(SEED)
    problems = []
    for words, result in islice(cycle(WORD_PROBLEMS), NUM_WORD_PROBLEMS):
        a = random.randrange(2, 10)
        b = random.randrange(2, 10)
        problems.append((words.format(a=a, b=b, sum=a + b), result(a, b)))
    return problems


def solve(
    exam: Exam, problem: tuple[str, int], threshold: float | None, bench: Workbench
) -> tuple[bool, Trace]:
    """Whether the answer, written greedily, ends with the result; and the run. threshold: None without a draft."""
    target, draft = exam.pair
    prompt, result = problem
    method = BASELINE
    params: dict[str, object] = {}
    if threshold is not None:
        method = "reasoning"
        params = {**exam.params, "threshold": threshold}
    request = Request(
        prompt=prompt,
        target=target,
        draft=draft,
        method=method,
        params=params,
        temperature=0.0,
        max_new_tokens=exam.most_tokens,
        chat=chats(target),
    )
    run = whole_run(activate(request.validate(), bench.pool))
    numbers = re.findall(r"\d+", run.text)
    return numbers[-1:] == [str(result)], run


def answers_row(threshold: float | None, answers: list[tuple[bool, Trace]]) -> list[str]:
    """A row of the table of answers, at one threshold."""
    num_right = 0
    num_accepted = 0
    num_graded = 0
    for is_right, run in answers:
        counters = count(run)
        num_right += is_right
        num_accepted += counters.num_graded_accepted
        num_graded += counters.num_graded
    name = "the target alone" if threshold is None else f"{threshold:g}"
    return [name, _share(num_right, len(answers)), _share(num_accepted, num_graded)]


def _share(successes: int, n: int) -> str:
    low, high = wilson(successes, n)
    return f"{successes} of {n} ({low:.0%}-{high:.0%})" if n else "-"


def lines() -> Iterator[str]:
    """Yields what `bench claims` prints: all that the Compare page measures of what introductions claim."""
    for measure in (measure_claims, measure_poor_cases, measure_quality):
        *_, last = measure(workbench())
        for heads, rows in last.tables:
            yield from table(heads, rows)
            yield ""
