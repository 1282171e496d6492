"""What a lossy draft costs: how probable the text stays, rule by rule, and how many sums come out right where whole
reasoning steps are taken from the draft. Lossless rules stand beside the others, at zero but for chance."""

import statistics
from collections.abc import Iterator
from random import Random

from specviz.bench.claims import Finding, measure_claims, measure_poor_cases, span
from specviz.bench.contenders import BASELINE
from specviz.bench.report import table
from specviz.checks.end_to_end import end_to_end
from specviz.checks.pair import Pair
from specviz.checks.prove import bundled_prompts
from specviz.decoding.sampling import Sampling
from specviz.models.catalog import default_pair
from specviz.request import Request
from specviz.rules import ANY_CHAIN
from specviz.session.record import activate, record
from specviz.session.workbench import Workbench, workbench
from specviz.trace.counters import wilson
from specviz.trace.file import Trace
from specviz.trace.metrics import count

K, NUM_TOKENS = 4, 1_024  # of each rule
NUM_SUMS, SUMS_SEED, MOST_ANSWER_TOKENS = 40, 21, 140  # no bundled model was trained on a sum of this seed
THRESHOLDS = (None, 0.0, -0.3, -0.7, -1.5, -3.0, -20.0)
RULE_HEADS = ["rule", "by its promise", "wrong share in one step", "change of log-probability per token, nats"]
SUM_HEADS = ["least log-probability of a step", "sums right (95 %)", "drafted steps taken (95 %)"]


def measure_quality(bench: Workbench) -> Iterator[Finding]:
    """The bundled pair: texts by every rule that judges plain drafts, then sums at every threshold; one of either per
    result. The caller holds the engine while it asks for the next. Raises SpecvizError.

    A change is that of a text's mean, against the target's own text of the same seed: median and interval over texts.
    """
    large, small = (bench.library.load(name, as_draft=bool(place)) for place, name in enumerate(default_pair()))
    rules, sums, plain = [], [], ()
    total = NUM_TOKENS * (1 + len(ANY_CHAIN)) + MOST_ANSWER_TOKENS * NUM_SUMS * len(THRESHOLDS)
    for place, rule in enumerate((None, *ANY_CHAIN.values())):
        pair = Pair(large, None, BASELINE) if rule is None else Pair(large, small)
        judge = rule or next(iter(ANY_CHAIN.values()))  # which has nothing to judge where nothing is drafted
        for texts in end_to_end(pair, judge, bundled_prompts(large), Sampling(), K, NUM_TOKENS):
            doing = rule.title if rule else "the target alone"
            yield Finding(NUM_TOKENS * place + texts.done, total, doing, ((RULE_HEADS, [*rules]),))
        plain = plain or texts.log_probs
        if rule is not None:
            changes = [each - alone for each, alone in zip(texts.log_probs, plain, strict=False)]
            promise, wrong = "lossless" if rule.lossless else "lossy", statistics.fmean(texts.distances)
            rules.append([rule.title, promise, f"{wrong:.1%}", span(changes, "+.2f")])
    for place, threshold in enumerate(THRESHOLDS):
        answers = []
        for number, pair in enumerate(drawn_sums(), NUM_SUMS * place):
            done = total - MOST_ANSWER_TOKENS * (NUM_SUMS * len(THRESHOLDS) - number)
            yield Finding(done, total, "sums", ((RULE_HEADS, rules), (SUM_HEADS, [*sums])))
            answers.append(write_sum(*pair, threshold, bench))
        sums.append(sums_row(threshold, answers))
    yield Finding(total, total, "", ((RULE_HEADS, rules), (SUM_HEADS, sums)))


def drawn_sums() -> list[tuple[int, int]]:
    """Pairs of three-digit numbers, always the same ones."""
    lots = Random(SUMS_SEED)
    return [(lots.randrange(100, 1000), lots.randrange(100, 1000)) for _ in range(NUM_SUMS)]


def write_sum(a: int, b: int, threshold: float | None, bench: Workbench) -> tuple[bool, Trace]:
    """Whether the answer, written greedily, is right, and the run. threshold: of drafted steps; None: no draft."""
    target, draft = default_pair()
    way = {"method": BASELINE} if threshold is None else {"method": "reasoning", "params": {"threshold": threshold}}
    law = {"temperature": 0.0, "max_new_tokens": MOST_ANSWER_TOKENS}
    request = Request(prompt=f"Sum: {a} + {b}\n\n", target=target, draft=draft, **way, **law)
    made = record(activate(request.validate(), bench.library))
    return f"{a} + {b} = {a + b}" in made.text.splitlines(), made


def sums_row(threshold: float | None, answers: list[tuple[bool, Trace]]) -> list[str]:
    counters = [count(made) for _, made in answers]
    kept, graded = (sum(getattr(each, name) for each in counters) for name in ("num_graded_kept", "num_graded"))
    name = "the target alone" if threshold is None else f"{threshold:g}"
    return [name, _share(sum(is_right for is_right, _ in answers), len(answers)), _share(kept, graded)]


def _share(successes: int, n: int) -> str:
    low, high = wilson(successes, n)
    return f"{successes} of {n} ({low:.0%}-{high:.0%})" if n else "-"


def lines() -> Iterator[str]:
    """What `bench --claims` prints: all that the Compare page measures of what introductions claim."""
    for measure in (measure_claims, measure_poor_cases, measure_quality):
        *_, found = measure(workbench())
        for heads, rows in found.tables:
            yield from [*table(heads, rows), ""]
