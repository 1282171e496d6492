"""Laws of the measurements: fair contenders, honest sums, and a step whose Python work does not grow with the text."""

import itertools
import json
import re
import statistics
import sys
from dataclasses import replace

import pytest

from specviz.alignment import bench as pace
from specviz.analysis.rounds import WORDS, SpeedComparison
from specviz.bench import methods as bench_methods
from specviz.bench import speed
from specviz.bench.contenders import (
    BenchPrompt,
    BenchTask,
    StepMeans,
    TimedGeneration,
    describe_steadiness,
    run_bench,
    specviz_contender,
    summarise,
    tokens_per_call,
    transformers_contender,
)
from specviz.bench.report import prompts_for
from specviz.cli.output import output
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.setup import gather
from specviz.session.whole_run import activate, whole_run
from specviz.session.workbench import Workbench
from specviz.trace.metrics import metrics
from tests.helpers.printed_text import lines_during
from tests.helpers.runs import begin, make_steps
from tests.helpers.tiny_models import tiny, tiny_tokenizer

NONE, DRAFT, PEER = "specviz, none", "specviz, draft_model", "generate, assistant_model"
BASE = TimedGeneration(
    NONE, "story", "one", 1.0, num_tokens=11, seconds=1.5, num_first=1, first_seconds=0.5, target_calls=11
)
SIZES = {"one": 5, "two": 9, "three": 6}
PROMPTS = tuple(BenchPrompt("story", name, tuple(range(3, 3 + size))) for name, size in SIZES.items())


ROUNDS = {"one": 1, "two": 2, "three": 3, "four": 4}


def sample(contender, prompt, rate, *, temperature=1.0, **changes):
    """A sample that decodes at `rate` tokens per second, in the round of its prompt."""
    made = {"temperature": temperature, "round": ROUNDS[prompt]} | changes
    return replace(BASE, contender=contender, prompt=prompt, seconds=0.5 + 10 / rate, **made)


@pytest.fixture(scope="module")
def models():
    """Target and draft with an end token, at which only a task that ends stops."""
    pool, tokenizer = ModelPool(10**9), tiny_tokenizer()
    made = [tiny("llama", vocab_size=len(tokenizer), layers=layers, seed=layers) for layers in (2, 1)]
    return [pool.load((model, tokenizer)) for model in made]


@pytest.fixture(scope="module")
def contenders(models):
    target, draft = models
    return [
        specviz_contender(gather(METHODS["none"], {}, target, None), 3),
        specviz_contender(gather(METHODS["draft_model"], {}, target, draft), 3),
        specviz_contender(gather(METHODS["prompt_lookup"], {"max_ngram": 2}, target, None), 3),
        transformers_contender(target, None, 3),
        transformers_contender(target, draft, 3),
    ]


def job(prompt=PROMPTS[0], temperature=1.0, seed=0, num_tokens=12):
    return BenchTask(prompt, Sampling(temperature), seed, num_tokens)


def test_rates_count_tokens_and_leave_the_first_step_out_of_decoding():
    assert BASE.tokens_per_s == 11 / 1.5
    assert BASE.decode_tokens_per_s == 10.0
    assert replace(BASE, num_first=11, first_seconds=1.5).decode_tokens_per_s == 11 / 1.5


def test_ratios_are_medians_of_ratios_of_each_prompt():
    rates = {"one": (10, 40), "two": (100, 150), "three": (50, 200)}  # ratios 4, 1.5, 4
    samples = [
        sample(contender, prompt, rate, target_calls=calls)
        for prompt, pair in rates.items()
        for contender, rate, calls in zip((NONE, DRAFT), pair, (11, 2), strict=True)
    ]
    rows = {row.contender: row for row in summarise(samples)}
    assert rows[DRAFT].to_baseline.ratio == pytest.approx(4.0)  # and not 150 / 50
    assert rows[DRAFT].to_baseline.between == pytest.approx((1.5, 4))
    assert rows[NONE].to_baseline is rows[DRAFT].to_peer is rows[NONE].to_peer is None
    assert (rows[DRAFT].decode, rows[NONE].decode) == (pytest.approx(150), pytest.approx(50))


def test_rounds_count_by_their_quicker_turn_prompts_by_the_median_of_rounds_and_quartiles_run_over_prompts():
    rates = {"one": ((10, 9), (20, 2), (600, 6)), "two": ((40, 4),), "three": ((60, 50), (80, 8)), "four": ((8, 80),)}
    rounds = [(prompt, pair) for prompt, several in rates.items() for pair in several]
    samples = [
        sample(PEER, prompt, rate, round=number) for number, (prompt, pair) in enumerate(rounds, 1) for rate in pair
    ]
    row = summarise(samples)[0]
    low, middle, high = statistics.quantiles([20, 40, 1 / statistics.median([1 / 60, 1 / 80]), 80], n=4)
    assert (row.decode_low, row.decode, row.decode_high) == pytest.approx((low, middle, high))
    assert row.to_peer is None
    assert row.whole == pytest.approx(statistics.median(s.tokens_per_s for s in samples))


@pytest.mark.parametrize(("slower", "words"), [(1.1, "10% more time (median)"), (1.2, "repeat when it is idle")])
def test_how_busy_the_machine_was_is_said_by_two_turns_of_one_contender(slower, words):
    samples = [sample(NONE, prompt, rate) for prompt in SIZES for rate in (50.0, 50.0 / slower)]
    assert describe_steadiness(samples).endswith(words)


def test_temperatures_are_summed_up_apart():
    samples = [
        sample(NONE, prompt, 10 * (1 + temperature), temperature=temperature, round=number)
        for number, (prompt, temperature) in enumerate(itertools.product(("one", "two"), (0.0, 1.0)), 1)
    ]
    rows = summarise(samples)
    assert [(row.temperature, pytest.approx(row.decode)) for row in rows] == [(0.0, 10), (1.0, 20)]


def test_tokens_per_call_is_a_ratio_of_sums_and_shares_are_medians():
    several = [(3, 0.01), (7, None), (20, 0.05)]
    samples = [
        sample(DRAFT, prompt, 10, target_calls=calls, record_share=share)
        for prompt, (calls, share) in zip(("one", "two", "three"), several, strict=True)
    ]
    row = summarise(samples)[0]
    assert row.tokens_per_call == 33 / 30
    assert row.record_share == pytest.approx(0.03)


def test_a_round_of_all_contenders_is_made_for_every_repeat_prompt_and_temperature():
    asked = []

    def contender(name):
        return lambda job: asked.append((name, job)) or replace(BASE, contender=name)

    names = ["a", "b", "c"]
    samples = list(run_bench([contender(name) for name in names], PROMPTS, num_tokens=9, repeats=2))
    warm_up, measured = asked[:3], asked[3:]
    assert [name for name, _ in warm_up] == names
    assert [sample.contender for sample in samples] == [name for name, _ in measured]
    rounds = [measured[start : start + 6] for start in range(0, len(measured), 6)]
    assert len(rounds) == 2 * len(PROMPTS) * 2
    assert [sample.round for sample in samples] == [number for number in range(1, 13) for _ in range(6)]
    assert all(len({job for _, job in turn}) == 1 for turn in rounds)
    for order in ([name for name, _ in turn] for turn in rounds):
        assert sorted(order[:3]) == names
        assert order[3:] == order[2::-1]
    assert [turn[0][1].seed for turn in rounds] == [0] * 6 + [1] * 6
    assert [turn[0][1].sampling.temperature for turn in rounds] == [0.0, 1.0] * 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_contenders_write_as_many_tokens_as_were_asked_for(contenders, temperature):
    for contender, prompt in itertools.product(contenders, PROMPTS):
        made = contender(job(prompt, temperature))
        assert made.num_tokens == len(made.tokens) == 12
        assert 0 < made.num_first <= 4
        assert 0 < made.first_seconds < made.seconds
        assert made.target_calls <= 12


def test_at_temperature_0_all_contenders_write_the_same_text(contenders):
    texts = {contender(job(PROMPTS[1], 0.0, num_tokens=40)).tokens for contender in contenders}
    assert len(texts) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_of_the_bench_ends_where_a_run_ends(temperature):
    """A sum, which the bundled target has written out before 64 tokens; the next text would count for its kind."""
    pool = ModelPool(10**9)
    pair = pool.load("fable-target"), pool.load("fable-draft", as_draft=True)
    prompt = next(each for each in prompts_for(pair[0]) if each.kind == "arithmetic")
    made = [specviz_contender(gather(METHODS[name], {}, *pair), 4) for name in ("draft_model", "none")]
    made += [transformers_contender(pair[0], draft, 4) for draft in (None, pair[1])]
    samples = [*run_bench(made, [prompt], temperatures=[temperature], num_tokens=64, repeats=1)]
    names = {"target": pair[0].name, "draft": pair[1].name, "temperature": temperature, "max_new_tokens": 64}
    recorded = whole_run(activate(Request(prompt_ids=prompt.ids, **names), pool))
    assert recorded.footer.reason == "eos"
    assert len(recorded.tokens) < 64
    for one in samples:
        assert [token in pair[0].text.eos_ids for token in one.tokens].index(True) == one.num_tokens - 1
        if temperature == 0 or one.contender == DRAFT:
            assert one.tokens == tuple(token.id for token in recorded.tokens)
    ours = [one for one in samples if one.contender == DRAFT]
    assert tokens_per_call(ours) == metrics(recorded)["tokens_per_target_call"]


def test_without_a_draft_there_is_one_call_per_token(contenders):
    for number in (0, 3):
        assert contenders[number](job()).target_calls == 12


def test_a_draft_saves_calls(models):
    target = models[0]
    ours = specviz_contender(gather(METHODS["draft_model"], {}, target, target), 3)
    for contender in (ours, transformers_contender(target, target, 3)):
        assert contender(job(temperature=0.0)).target_calls == 3  # 4 tokens each: 3 drafted and a bonus


def test_recording_is_timed_in_our_own_contenders_only(contenders):
    shares = [contender(job()).record_share for contender in contenders]
    assert all(0 < share < 1 for share in shares[:3])
    assert shares[3:] == [None, None]


def test_no_models_own_generation_settings_are_touched(models):
    before = [model.model.generation_config.to_dict() for model in models]
    configs = [model.model.generation_config for model in models]
    contender = transformers_contender(*models, 5)
    for temperature in (0.0, 1.0):
        contender(job(temperature=temperature))
    assert [model.model.generation_config.to_dict() for model in models] == before
    assert all(model.model.generation_config is config for model, config in zip(models, configs, strict=True))


# A step's own cost


def calls_during(action):
    """How many Python and C functions are called while `action` runs."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("count", [calls_during, lines_during])
@pytest.mark.parametrize("method", ["draft_model", "none"])
def test_python_work_per_step_does_not_grow_with_the_text(method, count):
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    size = len(tokenizer)
    model = tiny("llama", vocab_size=size, max_position_embeddings=4096, eos_token_id=None)
    pool = ModelPool(10**9)
    name = pool.load((model, tokenizer)).name
    text = pool.load(name).text
    for token in range(size):
        text.bytes_of(token)  # each is read once in the life of a library
    counts = []
    for length in (100, 2000):
        prompt = tuple(token % size for token in range(length))
        request = {"prompt": "", "prompt_ids": prompt, "target": name, "draft": name, "temperature": 0.0}
        run = begin(Workbench(pool), method=method, **request)
        make_steps(run, 2)
        counts.append(count(lambda run=run: make_steps(run, 2)))
        assert [len(step.emitted) for step in run.trace.steps] == [5 if method == "draft_model" else 1] * 4
    assert counts[1] == pytest.approx(counts[0], rel=0.02)


@pytest.mark.slow
def test_the_labs_batches_are_measured_beside_recorded_runs_in_every_round():
    *_, recorded, analysed, drawn = pace.lines(target="fable-target", draft="fable-draft", num_tokens=24, repeats=3)
    base, rate, whole = (float(line.split("|")[2].replace(",", "")) for line in (recorded, analysed, drawn))
    assert min(rate, whole, base) > 0
    assert rate > whole  # drawing the texts takes time; whether a batch beats runs depends on the machine
    ratios = [line.split("|")[3].strip() for line in (recorded, analysed, drawn)]
    assert ratios[0] == "-"
    assert all(re.fullmatch(r"[\d.]+x \([\d.]+-[\d.]+\), too few to tell", ratio) for ratio in ratios[1:])
    assert float(ratios[1].partition("x")[0]) > float(ratios[2].partition("x")[0]) > 0


# Every method beside every other

STEPS = StepMeans(number=9, drafted=3.0, emitted=1.9, draft_ms=6.0, verify_ms=12.0, rest_ms=2.0)
PLAIN = StepMeans(number=9, drafted=0.0, emitted=1.0, draft_ms=0.0, verify_ms=9.0, rest_ms=1.0)


def test_the_steps_means_are_those_of_the_steps_after_the_first(models):
    target, draft = models
    made = specviz_contender(gather(METHODS["draft_model"], {}, target, draft), 3)(job(num_tokens=20))
    steps = made.steps
    assert made.num_first + steps.emitted * steps.number == pytest.approx(made.num_tokens)
    assert 0 < steps.drafted <= 3
    decoding = (made.seconds - made.first_seconds) * 1e3
    assert 0 < steps.draft_ms + steps.verify_ms < steps.total_ms * 1.0001
    assert steps.total_ms * steps.number == pytest.approx(decoding, rel=0.2)
    assert specviz_contender(gather(METHODS["none"], {}, target, None), 3)(job(num_tokens=1)).steps is None


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["all"], ["none", *(name for name in METHODS if name != "none")]),
        (["prompt_lookup, draft_model"], ["none", "prompt_lookup", "draft_model"]),
        (["draft_model", "none", "draft_model"], ["none", "draft_model"]),
        (["tree", "tree:width=1:nodes=4"], ["none", "tree", "tree:width=1:nodes=4"]),
    ],
)
def test_no_draft_is_always_measured_and_first(asked, names):
    assert bench_methods.chosen_methods(asked) == names


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(SpecvizError, match=r"draft_model, .* \(got 'magic'\)"):
        bench_methods.chosen_methods(["draft_model,magic"])


def refusing(parts, params):
    raise SpecvizError("this target has no such modules")


def test_what_cannot_draft_for_the_target_is_left_out_with_the_reason(models, monkeypatch):
    target = models[0]
    unbuilt = replace(METHODS["prompt_lookup"], name="unbuilt", build=refusing)
    lonely = replace(METHODS["draft_model"], name="lonely")
    monkeypatch.setattr(bench_methods, "METHODS", {**METHODS, "unbuilt": unbuilt, "lonely": lonely})
    pool = ModelPool(10**9, allow_any=False)
    names = ["none", "unbuilt", "lonely", "prompt_lookup:max_ngram=2", "prompt_lookup:colour=2"]
    setups, left_out = bench_methods.load_setups(names, pool, target, "nowhere", 3, PROMPTS[0])
    assert list(setups) == ["none", "prompt_lookup:max_ngram=2"]
    assert setups["prompt_lookup:max_ngram=2"].params["max_ngram"] == 2
    assert [(name, reason[:30]) for name, reason in left_out.items()] == [
        ("unbuilt", "this target has no such module"),
        ("lonely", "this server offers only its ow"),
        ("prompt_lookup:colour=2", "the method prompt_lookup has n"),
    ]


def test_rows_hold_ratios_by_kind_and_over_all_prompts(models):
    setups = {name: gather(METHODS[name], {}, *models) for name in ("none", "prompt_lookup")}
    lookup = "specviz, prompt_lookup"
    rates = {"one": ("story", 10, 40), "two": ("story", 20, 40), "three": ("code", 50, 25)}
    samples = [
        sample(contender, prompt, rate, kind=kind, steps=steps, target_calls=calls)
        for prompt, (kind, *pair) in rates.items()
        for contender, rate, steps, calls in zip((NONE, lookup), pair, (PLAIN, STEPS), (11, 5), strict=True)
    ]
    plain, row = bench_methods.rows_of(setups, samples)
    kinds = [(kind.kind, pytest.approx(kind.to_baseline.ratios)) for kind in row.kinds]
    assert kinds == [("story", (4, 2)), ("code", (0.5,))]
    assert [kind.tokens_per_call for kind in row.kinds] == [11 / 5, 11 / 5]
    assert row.whole.to_baseline.ratio == pytest.approx(2.0)
    assert (row.method, row.rule, row.lossless) == ("prompt_lookup", "speculative_sampling", True)
    assert (plain.why, plain.whole.to_baseline) == ("", None)
    assert row.why == (
        "too few to tell: a step writes 1.90 tokens in the time of 2.00 plain steps: drafting 6.0 ms = 0.60 (c = 0.22 "
        "per token), checking 4.0 tokens 12.0 ms = 1.20, the rest 2.0 ms = 0.20"
    )


@pytest.mark.parametrize(
    ("ratio", "changes", "verdict", "cause"),
    [
        (1.5, {}, "gains", ""),
        (0.97, {}, "breaks even", ""),
        (0.7, {}, "loses", "drafting costs most"),
        (0.7, {"verify_ms": 30.0}, "loses", "checking many tokens costs most"),
        (0.7, {"draft_ms": 0.0, "verify_ms": 9.5, "rest_ms": 7.0}, "loses", "work outside both models costs most"),
        (0.7, {"emitted": 1.1}, "loses", "few of its tokens are accepted"),
        (0.7, {"drafted": 0.0, "draft_ms": 0.0, "emitted": 1.0}, "loses", "few of its tokens are accepted"),
    ],
)
def test_the_words_say_whether_it_gains_and_what_it_loses_by(ratio, changes, verdict, cause):
    why = bench_methods.describe_why(SpeedComparison((ratio,) * 8), replace(STEPS, **changes), PLAIN)
    assert why.startswith(f"{verdict}: a step writes")
    assert why.partition("; ")[2] == cause


def test_on_a_busy_machine_no_reason_is_given():
    found = SpeedComparison((0.4, *(0.8,) * 6, 1.6), spread=0.3)
    assert bench_methods.describe_why(found, STEPS, PLAIN) == "too noisy to tell: repeat when this machine is idle"


def test_the_table_and_the_file_hold_every_method(monkeypatch, tmp_path, named_models):
    monkeypatch.setattr(bench_methods, "ModelPool", lambda: named_models)
    kinds = [BenchPrompt(kind, kind, (5, 6, 7, 8)) for kind in ("story", "code")]
    monkeypatch.setattr(bench_methods, "prompts_for", lambda target: kinds)
    place = tmp_path / "methods.json"
    settings = {"target": "big", "draft": "near", "k": 2, "num_tokens": 8, "repeats": 1}
    said = list(bench_methods.lines(methods=["prompt_lookup,draft_model"], save=output(str(place)).write, **settings))
    rows = [line.split(" | ") for line in said if line.startswith("| ") and "method" not in line]
    assert [cells[0] for cells in rows] == ["| none", "| prompt_lookup", "| draft_model"] * 2
    assert all(len(cells) == 7 for cells in rows)
    saved = json.loads(place.read_text())
    assert [row["method"] for row in saved["rows"]] == ["none", "prompt_lookup", "draft_model"] * 2
    for row in saved["rows"]:
        is_plain = row["method"] == "none"
        assert row["whole"]["to_baseline"] == 1 if is_plain else row["whole"]["verdict"] in ("few", "impossible")
    assert saved["methods"]["draft_model"]["draft"] == "near"
    assert (saved["left_out"], saved["target"], saved["k"]) == ([], "big", 2)


# ---- the speed that the page says ------------------------------------------------------------------------------------


def test_no_ratio_is_above_the_tokens_per_target_call_in_any_table(models, monkeypatch):
    """The draft's runs are 4 times as fast, which 2.2 tokens per target call cannot make them."""
    setups = {name: gather(METHODS[name], {}, *models) for name in ("none", "prompt_lookup")}
    pairs = (NONE, 10, PLAIN, 11), ("specviz, prompt_lookup", 40, STEPS, 5)
    samples = [
        sample(contender, prompt, rate, steps=steps, target_calls=calls)
        for prompt in ("one", "two")
        for contender, rate, steps, calls in pairs
    ]
    _, row = bench_methods.rows_of(setups, samples)
    told = WORDS["impossible"]
    assert str(row.whole.to_baseline) == row.kinds[0].to_baseline.span == row.why == told
    saved = bench_methods._as_json(row.whole)
    assert (saved["to_baseline"], saved["between"], saved["verdict"]) == (None, None, "impossible")


def measured_speed(monkeypatch, models, rates, *, others=0, method="prompt_lookup", calls=1):
    """What measuring comes to where the runs without a draft make 100 tokens/s and the others these, then half; each
    made 11 tokens in so many target calls."""
    doubled = [rates[0], *(each * share for each in rates[1:] for share in (1, 0.5))]
    made = (iter([100.0] * len(doubled)), iter(doubled))
    sides = iter(made)

    def contender(*given, **named):
        rate = next(sides)
        return lambda job: sample(NONE, "one", next(rate), target_calls=calls)

    monkeypatch.setattr(speed, "ROUNDS", len(rates) - 1)
    monkeypatch.setattr(speed, "specviz_contender", contender)
    monkeypatch.setattr(TimedGeneration, "tokens_per_s", property(lambda self: 10 / (self.seconds - 0.5)))
    pool = ModelPool(10**9)
    name = pool.load((models[0].model, models[0].tokenizer)).name
    bench = Workbench(pool)
    tickets = [bench.engine.join() for _ in range(1 + others)]
    *progress, last = speed.measure_in_rounds(Request(prompt="a b a b", target=name, draft=None, method=method), bench)
    assert [each.speed for each in progress] == [None] * len(progress)
    assert len(tickets) == len(bench.engine)
    return last.speed


@pytest.mark.parametrize(
    ("rates", "doubt"),
    [
        ((1.0, 120.0, 130.0, 110.0, 120.0, 120.0, 120.0), ""),
        ((1.0, 80.0, 70.0, 90.0, 80.0, 80.0, 80.0), ""),
        ((1.0, 120.0, 120.0, 120.0, 120.0, 120.0), "few"),
        ((1.0, *[110.0] * 4, 130.0, 90.0), "even"),
        ((1.0, *[100.0] * 6), "even"),
        ((1.0, *[120.0] * 4, 300.0, 50.0), "noisy"),
    ],
)
def test_a_ratio_is_given_only_where_all_rounds_agree(monkeypatch, models, rates, doubt):
    speed = measured_speed(monkeypatch, models, rates)
    assert speed.doubt == doubt
    assert speed.found.between == pytest.approx((min(rates[1:]) / 100, max(rates[1:]) / 100))
    assert speed.found.ratio == pytest.approx(statistics.median(rates[1:]) / 100)


def test_no_ratio_is_given_of_the_baseline_itself_or_where_others_wait_for_the_engine(monkeypatch, models):
    rates = (1.0, 120.0, 130.0, 110.0)
    assert measured_speed(monkeypatch, models, rates, method="none").doubt == "baseline"
    assert measured_speed(monkeypatch, models, rates, others=1).doubt == "shared"


def test_a_ratio_that_its_tokens_per_target_call_do_not_allow_is_impossible(monkeypatch, models):
    rates = (1.0, *[260.0] * 6)
    assert measured_speed(monkeypatch, models, rates, calls=5).doubt == "impossible"  # 11 tokens in 5 calls: 2.2
    possible = measured_speed(monkeypatch, models, rates, calls=4)
    assert (possible.doubt, possible.tokens_per_call) == ("", 2.75)
