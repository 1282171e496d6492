"""Rules side by side: shares and distances against plain forwards and the enumerated code of every rule."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from specviz import trace
from specviz.checks import rows
from specviz.checks import side_by_side as module
from specviz.checks.side_by_side import EXACT, side_by_side
from specviz.decoding.draft import chain
from specviz.decoding.draws import ACCEPT, Seeded, distribution
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.rules import ANY_CHAIN
from specviz.rules.broken import BROKEN
from specviz.session.workbench import Workbench
from specviz.settings import assets_dir
from specviz.trace import load_trace
from specviz.views.blocks import dump
from specviz.views.compare.rules import side_by_side as section
from tests.helpers import traces
from tests.helpers.page_records import check_record, kind_of
from tests.helpers.recorded_steps import distribution as numpy_distribution
from tests.helpers.runs import REQUEST, begin, finish, made, make_steps

SAMPLING = Sampling(1.0, top_k=6)  # few outcomes to enumerate
DRAFTS_WRONGLY = {"argmax_draft", "untruncated_q"}
HARMLESS_IN_THREE = {"untruncated_q", "clamped_q"}  # five of three tokens, and none of them is rare
TOLD = [name for name, rule in {**ANY_CHAIN, **BROKEN}.items() if rule.lossless or rule.judges_alone]
"""Rules that one place tells to be right or wrong."""
CLOSE = partial(pytest.approx, abs=1e-5)


@pytest.fixture(scope="module")
def models(named_models):
    return named_models.load("big"), named_models.load("near")


@pytest.fixture(scope="module")
def run(named_models):
    return made(Workbench(named_models), top_k=6, temperature=1.0, max_new_tokens=16)


@pytest.fixture(scope="module")
def result(run, models):
    *_, last = side_by_side(run, *models)
    return last


def row(loaded, tokens):
    """The law [V] after these tokens, by a full forward of the raw model and numpy."""
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([tokens])).logits[0, -1].double().numpy()
    return torch.tensor(numpy_distribution(logits, SAMPLING))


def texts(run):
    """(step, the text before it) of a run."""
    tokens = [token.id for token in run.header.prompt.tokens]
    for step in run.steps:
        yield step, list(tokens)
        tokens += [token.id for token in step.emitted]


def places(run, models):
    """(step, node) -> p, q at every place that the run judged."""
    found = {}
    for step, text in texts(run):
        for node, token in enumerate(step.draft):
            if token.is_judged:
                before = [*text, *(earlier.id for earlier in step.draft[:node])]
                found[step.index, node] = row(models[0], before), row(models[1], before)
    return found


def by_name(result):
    return {each.rule.name: each for each in result.rows}


def test_every_rule_is_there_right_ones_first(result):
    assert {each.rule.name for each in result.rows} == {*ANY_CHAIN, *BROKEN}
    assert [each.rule.lossless for each in result.rows] == sorted(
        (each.rule.lossless for each in result.rows), reverse=True
    )
    assert {each.rule.name for each in result.rows if each.is_broken} == {*BROKEN}
    assert {each.rule.name for each in result.rows if each.verdict == "exact"} == {
        name for name, rule in ANY_CHAIN.items() if rule.lossless
    }


def test_the_runs_own_rule_keeps_what_the_run_kept(run, result):
    drafted = [token for step in run.steps for token in step.draft]
    mine = by_name(result)["speculative_sampling"]
    assert mine.num_judged == sum(token.is_judged for token in drafted)
    assert mine.num_accepted == sum(token.status == "accepted" for token in drafted)


def test_the_u_is_the_recorded_one_whatever_the_seed(run, models, result):
    header, *events = run.events()
    stranger = trace.Trace([replace(header, request={**header.request, "seed": 999}), *events])
    *_, other = side_by_side(stranger, *models)
    mine, again = by_name(result)["speculative_sampling"], by_name(other)["speculative_sampling"]
    assert (again.num_accepted, again.num_judged) == (mine.num_accepted, mine.num_judged)


@pytest.mark.parametrize("seed", [None, -1, 1 << 64, "1"])
def test_a_seed_that_cannot_be_is_no_hindrance(run, models, seed):
    header, *events = run.events()
    stranger = trace.Trace([replace(header, request={**header.request, "seed": seed}), *events])
    *_, result = side_by_side(stranger, *models)
    assert result.rows


def test_another_rules_run_gets_its_own_verdicts_back(bench, models):
    run = made(bench, rule="block_verification", num_speculative_tokens=5)
    *_, result = side_by_side(run, *models)
    drafted = [token for step in run.steps for token in step.draft]
    assert by_name(result)["block_verification"].num_accepted == sum(token.status == "accepted" for token in drafted)


def test_acceptance_is_the_mean_overlap_where_p_over_q_is_the_test(run, models, result):
    overlaps = [float(torch.minimum(p, q).sum()) for p, q in places(run, models).values()]
    expected = sum(overlaps) / len(overlaps)
    for name in ("speculative_sampling", "resample_p", "softmax_residual"):
        assert by_name(result)[name].acceptance == CLOSE(expected)


def test_a_rule_that_judges_a_draft_as_a_whole_has_no_acceptance_of_one_token(result):
    without = [name for name, each in by_name(result).items() if each.acceptance is None]
    assert without == ["block_verification", "peeking_scheduler"]
    (table,) = shown(section(result), "table")
    assert next(row for row in table.rows if row[0] == "Block verification")[3] == "–"


@pytest.mark.parametrize("name", TOLD)
def test_the_distance_is_that_of_the_enumerated_rule(run, models, result, name):
    """All draws of one token and of its verdict by the rule's real code, at the place where it is farthest off."""
    rule, mine = {**ANY_CHAIN, **BROKEN}[name], by_name(result)[name]
    p, q = max(
        places(run, models).values(), key=lambda pair: float((rule.one_step_distribution(*pair) - pair[0]).abs().sum())
    )
    drawn = rule.draft_distribution(q) if name in DRAFTS_WRONGLY else q
    written = torch.zeros_like(p)
    for x in drawn.nonzero()[:, 0].tolist():
        draft, probs = chain([x], q[None]), torch.stack([p, p])

        def first_token(draws, draft=draft, probs=probs):
            return rule(draft, probs, draws, 3).emitted(draft)[0]

        for token, weight in distribution(first_token).items():
            written[token] += drawn[x] * weight
    assert mine.largest_distance == CLOSE(float((written - p).abs().sum() / 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*ANY_CHAIN, *BROKEN) if name not in DRAFTS_WRONGLY])
def test_tokens_per_call_is_that_of_the_enumerated_rule(run, models, result, name):
    rule, expected = {**ANY_CHAIN, **BROKEN}[name], []
    for step, text in texts(run):
        ids = [token.id for token in step.draft]
        befores = [[*text, *ids[:node]] for node in range(len(ids) + 1)]
        probs = torch.stack([row(models[0], before) for before in befores])
        draft = chain(ids, [row(models[1], before) for before in befores[:-1]])
        lengths = distribution(lambda draws, draft=draft, probs=probs: 1 + len(rule(draft, probs, draws, 0).path))
        expected.append(sum(length * weight for length, weight in lengths.items()))
    assert by_name(result)[name].tokens_per_call == CLOSE(sum(expected) / len(expected))


def test_a_mistake_in_drafting_gets_drafts_of_its_own(run, models, result):
    """The greedy draft written out, judged with p/q and the run's u; where the run judged nothing, its seed's."""
    kept = judged = 0
    for step, text in texts(run):
        for node in range(len(step.draft)):
            q, p = row(models[1], text), row(models[0], text)
            x = int(q.argmax())
            u = step.draft[node].u
            if u is None:
                u = Seeded(REQUEST.seed).uniform(ACCEPT, step.context_length + node, node)
            judged += 1
            if not u * q[x] < p[x]:
                break
            kept += 1
            text = [*text, x]
    mine = by_name(result)["argmax_draft"]
    assert (mine.num_accepted, mine.num_judged) == (kept, judged)


def test_acceptance_alone_cannot_tell_right_from_wrong(result):
    right, wrong = result.twins
    assert right.rule.lossless
    assert wrong.rule.name in ("resample_p", "softmax_residual")
    assert right.acceptance == pytest.approx(wrong.acceptance, abs=EXACT)
    assert wrong.mean_distance > 1e-3


def test_results_are_cumulative(run, models, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    seen = list(side_by_side(run, *models))
    assert sorted({each.done for each in seen}) == [*range(len(run.steps) + 1)]
    assert all(each.rows == () for each in seen if not each.done)
    seen = [each for each in seen if each.done]
    judged = [by_name(each)["speculative_sampling"].num_judged for each in seen]
    assert judged == sorted(judged)
    assert 0 < judged[0] < judged[-1]


def test_at_temperature_0_a_wrong_rule_that_does_no_harm_is_not_called_exact(bench, models):
    run = made(bench, temperature=0.0)
    *_, result = side_by_side(run, *models)
    assert by_name(result)["argmax_draft"].verdict == "unsure"
    assert by_name(result)["speculative_sampling"].verdict == "exact"
    assert by_name(result)["softmax_residual"].verdict == "differs"


def test_certain_drafts_are_judged_without_a_draft_model(bench, models):
    run = made(bench, method="prompt_lookup", draft=None, temperature=0.0, max_new_tokens=48)
    *_, result = side_by_side(run, models[0], None)
    drafted = [token for step in run.steps for token in step.draft]
    assert sum(token.is_judged for token in drafted) > 0
    assert by_name(result)["speculative_sampling"].num_accepted == sum(token.status == "accepted" for token in drafted)
    assert DRAFTS_WRONGLY.isdisjoint(by_name(result))


def test_a_run_without_drafts_has_no_shares(bench, models):
    run = made(bench, method="none", draft=None)
    *_, result = side_by_side(run, models[0], None)
    mine = by_name(result)["speculative_sampling"]
    assert (mine.num_judged, mine.acceptance, mine.tokens_per_call, mine.verdict) == (0, None, 1.0, "unsure")
    said = dump(section(result))
    assert "nothing judged" in said
    assert "no error here" not in said
    assert "judged no drafted token" in said
    assert "exactly as much" not in said


def changed_live(bench):
    """A run whose draft changes from "near" to "far" after three steps."""
    run = begin(bench, num_speculative_tokens=2, max_new_tokens=24)
    make_steps(run, 3)
    run.controls.set("draft", "far")
    return finish(run)


def test_steps_of_another_draft_are_skipped_and_counted(bench, named_models):
    run = changed_live(bench)
    names = [step.settings.draft_model for step in run.steps]
    assert names[:3] == ["near"] * 3
    assert set(names[3:]) == {"far"}
    *_, result = side_by_side(run, named_models.load("big"), named_models.load("far"))
    assert (result.total, result.num_skipped) == (len(names) - 3, 3)
    drafted = [token for step in run.steps[3:] for token in step.draft]
    assert by_name(result)["speculative_sampling"].num_accepted == sum(token.status == "accepted" for token in drafted)
    assert "3 more steps were made by other models" in dump(section(result))


def test_other_models_than_the_runs_are_refused(run, named_models):
    with pytest.raises(SpecvizError, match="choose the models that made it"):
        list(side_by_side(run, named_models.load("big"), named_models.load("far")))
    with pytest.raises(SpecvizError, match="choose the models that made it"):
        list(side_by_side(run, named_models.load("padded"), named_models.load("near")))


def test_trees_and_empty_runs_are_refused(models, monkeypatch):
    for each in (module, rows):
        monkeypatch.setattr(each, "is_made_by", lambda *_: True)
    with pytest.raises(SpecvizError, match="only chains"):
        list(side_by_side(traces.tree(), *models))
    with pytest.raises(SpecvizError, match="no steps"):
        list(side_by_side(traces.Builder().finish(), *models))


# ---- the shipped trace and the section --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped():
    from specviz.models.pool import ModelPool

    pool = ModelPool(10**9)
    recorded = load_trace(assets_dir() / "traces" / "first-visit.jsonl.gz")
    *_, last = side_by_side(recorded, pool.load("fable-target"), pool.load("fable-draft"))
    return last


@pytest.mark.slow
def test_on_the_shipped_run_every_wrong_rule_is_off_and_every_right_one_exact(shipped):
    assert {each.rule.name: each.verdict for each in shipped.rows} == {
        name: "exact" if rule.lossless else "differs" for name, rule in {**ANY_CHAIN, **BROKEN}.items()
    }
    wrong_alone = [each for each in shipped.rows if each.rule.judges_alone and not each.rule.lossless]
    assert min(each.largest_distance for each in wrong_alone) > 0.01


def shown(props, kind):
    return [block for block in props.blocks if kind_of(block) == kind]


def test_the_table_says_what_was_found(shipped):
    check_record(section(shipped))
    (table,) = shown(section(shipped), "table")
    assert len(table.rows) == len(shipped.rows)
    for cells, each in zip(table.rows, shipped.rows, strict=True):
        assert each.rule.title in cells[0]
        assert cells[1].text[0] == ("✓" if each.rule.lossless else "✗")
        assert cells[2] == f"{each.num_accepted} of {each.num_judged}"
        assert cells[4] == f"{each.tokens_per_call:.2f}"
        if each.rule.name in TOLD:
            assert (cells[5] == "0\u00a0%") == each.rule.lossless
        else:
            assert cells[5] == cells[6] == "–"
        assert (cells[7] == "0\u00a0%") == (each.rule.lossless or each.rule.name in HARMLESS_IN_THREE)
        assert not each.rule.lossless or cells[1].text == "✓ exact (enumerated)"


def test_without_the_enumeration_a_rule_is_exact_by_formula_only(shipped):
    by_formula = replace(shipped, rows=tuple(replace(each, whole_distance=None) for each in shipped.rows))
    assert "exact by formula (one token judged alone)" in dump(section(by_formula))
    assert "exact (enumerated)" not in dump(shown(section(by_formula), "table"))


def test_the_lesson_names_both_rules_of_equal_acceptance(shipped):
    right, wrong = shipped.twins
    lesson = next(block.words for block in shown(section(shipped), "words") if "Acceptance alone" in block.words[0])
    assert (lesson[1], lesson[3]) == (right.rule.title, wrong.rule.title)


def test_an_empty_section_says_what_is_missing_and_offers_it():
    empty = section(None)
    assert [control.do for control in empty.controls] == ["judge"]
    assert "needs a run" in shown(empty, "words")[0].words


def test_an_unfinished_section_shows_how_far_it_is(run, models, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    results = side_by_side(run, *models)
    (progress,) = shown(section(next(results)), "progress")
    assert (progress.width, "Enumerating" in progress.words) == (0.0, True)
    props = section(next(each for each in results if each.done))
    (progress,) = shown(props, "progress")
    assert progress.width == pytest.approx(100 / len(run.steps), abs=0.1)
    assert not any("Acceptance alone" in str(block) for block in props.blocks)


def test_drafts_that_layers_drew_are_not_judged_as_if_they_were_certain(bench, models):
    run = made(bench, method="early_exit", draft=None)
    drawn = [any(token.q is not None for token in step.draft) for step in run.steps]
    *_, result = side_by_side(run, models[0], None)
    assert result.num_skipped == sum(drawn) > 5
    assert by_name(result)["speculative_sampling"].num_judged == 0


def test_what_the_draft_cannot_read_is_refused_before_it_reads_it(run, models):
    brief = replace(models[1], info=replace(models[1].info, context_limit=5))
    with pytest.raises(SpecvizError, match="step 1 has tokens that the draft model cannot read"):
        list(side_by_side(run, models[0], brief))
