"""prove(), its report and its command: verdicts, exit codes, and what is refused."""

import argparse
import json

import pytest

from specviz.checks.prove import bundled_prompts, find_rule, prove
from specviz.checks.report import STATES, CheckResult, Report
from specviz.checks.side_by_side import RuleResult
from specviz.cli.prove import add_arguments, run
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.rules import ANY_CHAIN, RULES
from specviz.rules.broken import BROKEN
from specviz.session.active_setup import text_of
from tests.helpers.broken_engines import Forgets, WritesP
from tests.helpers.tiny_models import bigram, tiny_tokenizer

PROMPT = list(range(5, 20))


@pytest.fixture(scope="module")
def models():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    size = len(tokenizer)
    pair = {"target": bigram(size, seed=1), "draft": bigram(size, seed=2, hidden=16)}
    for name, model in pair.items():
        model.name_or_path = f"report-{name}"
    return {name: (model, tokenizer) for name, model in pair.items()}


def report_of(*verdicts):
    return Report({"target": "some"}, tuple(CheckResult(verdict, verdict, "words") for verdict in verdicts))


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code"),
    [
        (("exact", "exact"), "exact", 0),
        (("exact", "consistent"), "consistent", 0),
        (("exact", "consistent", "unsure"), "unsure", 3),
        (("unsure", "differs", "suspicious"), "differs", 1),
        (("unsure", "suspicious", "consistent"), "suspicious", 4),
        ((), "unsure", 3),
    ],
)
def test_the_worst_verdict_is_the_reports_own(verdicts, verdict, code):
    assert (report_of(*verdicts).verdict, report_of(*verdicts).exit_code) == (verdict, code)


def test_a_report_never_claims_a_proof():
    for verdict in STATES:
        assert "prove" not in str(report_of(verdict))
        assert "proof" not in str(report_of(verdict)).lower()


def test_a_report_names_its_rules_and_reads_in_a_terminal():
    right = RuleResult(RULES["speculative_sampling"], 9, 7, 0.7, 2.75, 0.0, 0.0)
    wrong = RuleResult(BROKEN["argmax_target"], 0, 0, None, None, None, None)
    text = str(Report({"target": "some"}, (), (right, wrong)))
    assert "Acceptance alone cannot tell right from wrong" in text
    assert "70.0%" in text
    assert "n/a" in text


# ---- prove ----------------------------------------------------------------------------------------------------------


def test_a_right_rule_of_a_tiny_pair(named_models):
    """Of models that look at the whole text, each through a cache."""
    told, models = [], {role: named_models.load(name) for role, name in (("target", "big"), ("draft", "far"))}
    models = {role: (each.model, each.tokenizer) for role, each in models.items()}
    report = prove(PROMPT, **models, tokens=120, temperature=0.5, on_progress=lambda *words: told.append(words))
    assert {check.verdict for check in report.checks} <= {"exact", "consistent", "unsure"}
    by_name = {check.name: check for check in report.checks}
    assert report.checks[0].name == "whole texts, every outcome of the rule's program"
    assert report.checks[0].words.startswith("exact (enumerated)")
    formula = by_name["one step, by formula"]
    assert (formula.verdict, "by formula, one token judged alone" in formula.words) == ("exact", True)
    assert by_name["end to end, every token against the target"].verdict == "unsure"  # 120 tokens are few
    assert report.exit_code == 3
    assert {line.rule.title for line in report.rules} == {
        rule.title for rule in (*ANY_CHAIN.values(), *BROKEN.values())
    }
    assert all(fraction is None or 0 <= fraction <= 1 for _, fraction in told)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["about"]["target"] == "big"


def test_a_broken_rule_must_be_asked_for_by_its_full_name(models):
    report = prove(PROMPT, **models, rule="broken:argmax_target", tokens=100)
    assert (report.verdict, report.exit_code) == ("differs", 1)
    assert report.about["rule"] == "broken:argmax_target"
    with pytest.raises(SpecvizError, match="broken:argmax_target"):
        prove(PROMPT, **models, rule="argmax_target")


@pytest.mark.parametrize("rule", [WritesP(), Forgets()], ids=["writes p", "forgets"])
def test_a_rule_that_judges_whole_drafts_wrongly_differs(models, rule, monkeypatch):
    """Its formula for one token is that of a right rule, and few tokens do not show it: the enumeration does."""
    monkeypatch.setitem(RULES, "block_verification", rule)
    report = prove(PROMPT, **models, rule="block_verification", tokens=60)
    assert (report.checks[0].verdict, report.exit_code) == ("differs", 1)
    assert {check.name: check.verdict for check in report.checks}["one step, by formula"] == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 0.02}, {"top_p": 0.001}], ids=str)
def test_a_peaked_distribution_does_not_make_a_right_rule_undecided(models, options):
    report = prove(PROMPT, **models, tokens=300, **options)
    assert report.exit_code == 0, str(report)


@pytest.mark.parametrize("temperature", [0.0, 0.02])
@pytest.mark.parametrize("method", ["none", "prompt_lookup"])
def test_a_method_without_a_draft_model_is_not_left_undecided(models, method, temperature):
    report = prove(PROMPT, target=models["target"], method=method, tokens=300, temperature=temperature)
    assert report.exit_code == 0, str(report)


def test_temperature_0_compares_greedy_texts(models):
    report = prove(PROMPT, **models, temperature=0.0, tokens=30)
    assert [check.verdict for check in report.checks[:2]] == ["exact"] * 2
    assert report.checks[1].numbers == {"prompts": 1, "tokens": 30, "texts_that_part": 0}
    assert report.rules == ()


def test_samples_are_judged_alone(models, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({"prompt_ids": PROMPT, "ids": [1, 2, 3], "sampling": {"temperature": 0}}))
    report = prove(target=models["target"], samples=path)
    assert [check.name for check in report.checks] == ["tokens at temperature 0"]
    assert report.exit_code == 1
    assert report.about["samples"] == "samples.jsonl"
    assert prove(**models, samples=path).exit_code == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": 0}, "tokens must be a whole number"),
        ({"tokens": 2.5}, "tokens must be a whole number"),
        ({"k": 0}, "k must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"method": "magic"}, "method must be one of .*got 'magic'"),
        ({"rule": "magic"}, "no rule is named 'magic'"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [5, 100_000]}, "does not know"),
        ({"draft": None}, "needs a draft model"),
        ({"made_in": "bf16"}, "made_in must be one of bf16, fp16, fp32, and needs samples"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(models, options, words):
    with pytest.raises(SpecvizError, match=words):
        prove(**{"prompt": PROMPT, **models, **options})


def test_no_broken_rule_has_the_name_of_a_real_one():
    assert RULES.keys().isdisjoint(BROKEN)
    assert find_rule("broken:clamped_q") is BROKEN["clamped_q"]
    with pytest.raises(SpecvizError):
        find_rule("broken:speculative_sampling")


def test_the_bundled_prompts_are_many(models):
    from specviz.session.workbench import workbench

    prompts = bundled_prompts(workbench().pool.load(models["target"]))
    assert len(prompts) > 8
    assert all(prompts)


# ---- the command ----------------------------------------------------------------------------------------------------


def command(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_the_command_prints_and_saves_the_report(models, tmp_path, capsys):
    prove(PROMPT, **models, temperature=0.0, tokens=8)  # known by their names from now on
    names = ("--target", "report-target", "--draft", "report-draft")
    saved = tmp_path / "report.json"
    code = command(*names, "--prompt", "The fox said", "--temperature", "0", "--tokens", "12", "--json", str(saved))
    printed = capsys.readouterr()
    assert code in (0, 3)
    assert "exact (enumerated)" in printed.out
    assert "greedy" in printed.err
    assert json.loads(saved.read_text("utf-8"))["exit_code"] == code


def test_a_report_that_cannot_be_saved_is_an_error_in_words(models, tmp_path, capsys):
    prove(PROMPT, **models, temperature=0.0, tokens=8)
    names = ("--target", "report-target", "--draft", "report-draft", "--prompt", "The fox said", "--temperature", "0")
    (tmp_path / "shut").symlink_to("/dev/full")
    with pytest.raises(SpecvizError, match="must be an ordinary file"):
        command(*names, "--tokens", "8", "--json", str(tmp_path / "shut"))


def test_the_report_names_the_k_that_was_in_force(models):
    report = prove(
        PROMPT, target=models["target"], method="lookahead", params={"ahead": 2}, k=9, temperature=0, tokens=8
    )
    assert report.about["k"] == 2
    assert report.checks[0].verdict == "exact"
    assert "token trees" in report.checks[0].words
    with_k = prove(PROMPT, target=models["target"], method="prompt_lookup", k=9, temperature=0, tokens=8)
    assert with_k.about["k"] == 9


def test_prompts_are_read_in_the_chat_form_with_the_options_that_are_asked_for(models, tmp_path, monkeypatch):
    from specviz.session.workbench import workbench

    target = workbench().pool.load(models["target"])
    monkeypatch.setattr(target.tokenizer, "chat_template", "{{ messages[0].content }}{{ effort }}")
    asked = Request(prompt="y", target="x", chat=True, chat_options={"effort": " now"})
    plain = [text_of(target.text, ids) for ids in bundled_prompts(target)]
    assert [text_of(target.text, ids) for ids in bundled_prompts(target, asked)] == [f"{text} now" for text in plain]
    names = ("--target", "report-target", "--method", "prompt_lookup", "--temperature", "0", "--tokens", "8")
    command(*names, "--chat", "--chat-option", "effort=now", "--json", str(tmp_path / "report.json"))
    about = json.loads((tmp_path / "report.json").read_text("utf-8"))["about"]
    assert (about["chat"], about["chat_options"]) == (True, {"effort": "now"})
    with pytest.raises(SpecvizError, match="chat must be true"):
        command(*names, "--chat-option", "effort=now")
