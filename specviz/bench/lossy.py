"""What a lossy draft costs: how probable the text stays, rule by rule, and how many problems come out right where whole
reasoning steps are taken from the draft. Lossless rules stand beside the others, at zero but for chance."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from operator import add, mul
from random import Random
from typing import NamedTuple

from specviz.bench.claims import measure_claims, measure_poor_cases, span
from specviz.bench.contenders import BASELINE
from specviz.bench.report import BenchProgress, table
from specviz.checks.end_to_end import end_to_end
from specviz.checks.prove import bundled_prompts
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

K, NUM_TOKENS = 4, 1_024  # of each rule
SEED, NUM_SUMS, MOST_SUM_TOKENS = 21, 40, 140  # no bundled model was trained on a sum of this seed
NUM_WORD_PROBLEMS, MOST_WORD_TOKENS = 20, 60
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
    """Of the bundled pair texts by every rule that judges plain drafts, then all exams at every threshold; one text or
    answer per result, changes against the target's own text of the same seed. The caller holds the engine while it asks
    for the next. Raises SpecvizError."""
    large, small = (
        bench.pool.load(name, as_draft=bool(place)) for place, name in enumerate(default_pair())
    )
    exams, rules, plain = drawn_exams(), [], ()
    total = NUM_TOKENS * (1 + len(ANY_CHAIN))
    total += len(THRESHOLDS) * sum(exam.most_tokens * len(exam.problems) for exam in exams)
    for place, rule in enumerate((None, *ANY_CHAIN.values())):
        pair = gather(METHODS[BASELINE if rule is None else "draft_model"], {}, large, small)
        judge = rule or next(
            iter(ANY_CHAIN.values())
        )  # which has nothing to judge where nothing is drafted
        for texts in end_to_end(pair, judge, bundled_prompts(large), Sampling(), K, NUM_TOKENS):
            doing = rule.title if rule else "the target alone"
            yield BenchProgress(
                NUM_TOKENS * place + texts.done, total, doing, ((RULE_HEADS, [*rules]),)
            )
        plain = plain or texts.log_probs
        if rule is not None:
            changes = [each - alone for each, alone in zip(texts.log_probs, plain, strict=False)]
            promise, wrong = (
                "lossless" if rule.lossless else "lossy",
                statistics.fmean(texts.distances),
            )
            rules.append([rule.title, promise, f"{wrong:.1%}", span(changes, "+.2f")])
    done, tables = NUM_TOKENS * (1 + len(ANY_CHAIN)), [(RULE_HEADS, rules)]
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


class Exam(NamedTuple):
    """Problems with their results for a target model and a draft model; params: of the method."""

    name: str
    pair: tuple[str, str]
    problems: Sequence[tuple[str, int]]
    most_tokens: int
    params: Mapping[str, str] = {}


def drawn_exams() -> list[Exam]:
    """Sums for the bundled pair; word problems for the real one where it is on this machine."""
    exams = [Exam("sums", default_pair(), drawn_sums(), MOST_SUM_TOKENS)]
    if is_here(REAL):
        real = REAL, MODELS[REAL].drafts[0]
        exams.append(
            Exam(
                "word problems",
                real,
                drawn_word_problems(),
                MOST_WORD_TOKENS,
                {"delimiter": "line"},
            )
        )
    return exams


def drawn_sums() -> list[tuple[str, int]]:
    """Of three-digit numbers, always the same ones."""
    lots = Random(SEED)
    pairs = [(lots.randrange(100, 1000), lots.randrange(100, 1000)) for _ in range(NUM_SUMS)]
    return [(f"Sum: {a} + {b}\n\n", a + b) for a, b in pairs]


def drawn_word_problems() -> list[tuple[str, int]]:
    """Of one operation with one-digit numbers, always the same ones."""
    lots, problems = Random(SEED), []
    for words, result in islice(cycle(WORD_PROBLEMS), NUM_WORD_PROBLEMS):
        a, b = lots.randrange(2, 10), lots.randrange(2, 10)
        problems.append((words.format(a=a, b=b, sum=a + b), result(a, b)))
    return problems


def solve(
    exam: Exam, problem: tuple[str, int], threshold: float | None, bench: Workbench
) -> tuple[bool, Trace]:
    """Whether the answer, written greedily, ends with the result; and the run. threshold: None without a draft."""
    (target, draft), (prompt, result) = exam.pair, problem
    way = {"method": "reasoning", "params": {**exam.params, "threshold": threshold}}
    distribution = {"temperature": 0.0, "max_new_tokens": exam.most_tokens, "chat": chats(target)}
    distribution |= {"method": BASELINE} if threshold is None else way
    made = whole_run(
        activate(
            Request(prompt=prompt, target=target, draft=draft, **distribution).validate(),
            bench.pool,
        )
    )
    return re.findall(r"\d+", made.text)[-1:] == [str(result)], made


def answers_row(threshold: float | None, answers: list[tuple[bool, Trace]]) -> list[str]:
    counters = [count(made) for _, made in answers]
    kept, graded = (
        sum(getattr(each, name) for each in counters)
        for name in ("num_graded_accepted", "num_graded")
    )
    name = "the target alone" if threshold is None else f"{threshold:g}"
    return [
        name,
        _share(sum(is_right for is_right, _ in answers), len(answers)),
        _share(kept, graded),
    ]


def _share(successes: int, n: int) -> str:
    low, high = wilson(successes, n)
    return f"{successes} of {n} ({low:.0%}-{high:.0%})" if n else "-"


def lines() -> Iterator[str]:
    """What `bench --claims` prints: all that the Compare page measures of what introductions claim."""
    for measure in (measure_claims, measure_poor_cases, measure_quality):
        *_, found = measure(workbench())
        for heads, rows in found.tables:
            yield from [*table(heads, rows), ""]
