"""Temperature 0: equal to transformers' own greedy text, and what is said where it is not."""

import copy

import pytest
import torch

from specviz.checks.greedy import greedy
from specviz.models.pool import LoadedModel
from specviz.rules import RULES
from specviz.rules.speculative_sampling import SpeculativeSampling
from tests.helpers.pairs import pair_of

PROMPTS = [tuple(range(5 + i, 25 + i)) for i in range(3)]
K = 3


class KeepsAll(SpeculativeSampling):
    """WRONG: keeps whatever was drafted."""

    name = title = "keeps all"
    lossless = True

    def threshold(self, p, q, row):
        return torch.ones_like(p, dtype=torch.float64)


class WritesTwin(SpeculativeSampling):
    """Writes the twin of a favourite where there is one: as good a favourite up to rounding."""

    name = title = "writes the twin"
    lossless = True

    def __init__(self, token, twin):
        self.token, self.twin = token, twin

    def bonus(self, p):
        return self._moved(p)

    def residual(self, p, q):
        return self._moved(p)

    def threshold(self, p, q, row):
        return torch.zeros_like(p, dtype=torch.float64)

    def _moved(self, p):
        p = p.clone()
        p[..., self.twin] += p[..., self.token]
        p[..., self.token] = 0
        return p


def last(results):
    *_, result = results
    return result


@pytest.fixture
def pair(named_models):
    return pair_of(named_models.load("big"), named_models.load("near"))


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.lossless])
def test_a_lossless_rule_writes_the_targets_own_greedy_text(pair, name):
    *before, result = greedy(pair, RULES[name], PROMPTS, K, 24)
    assert result.outcome.state == "exact"
    assert (result.num_tokens, result.total) == (3 * 24, 3)
    assert [each.outcome for each in before] == [None] * 3


def test_an_end_token_ends_both_texts(pair, named_models):
    text = [*PROMPTS[0]]
    with torch.inference_mode():
        for _ in range(6):
            text.append(int(pair.target.model(torch.tensor([text])).logits[0, -1].argmax()))
    written = text[len(PROMPTS[0]) :]
    model = copy.deepcopy(pair.target.model)
    model.generation_config.eos_token_id = written[-1]
    model.name_or_path = "ends"
    target = named_models.load((model, pair.target.tokenizer))
    result = last(greedy(pair_of(target, pair.draft), RULES["speculative_sampling"], PROMPTS[:1], K, 24))
    assert result.outcome.state == "exact"
    assert result.num_tokens == written.index(written[-1]) + 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 5.0),
        ("no_repeat_ngram_size", 1),
        ("suppress_tokens", list(range(0, 300, 2))),
        ("begin_suppress_tokens", list(range(0, 300, 2))),
        ("min_new_tokens", 20),
        ("forced_eos_token_id", 7),
        ("bad_words_ids", [[each] for each in range(0, 300, 3)]),
    ],
)
def test_settings_of_the_model_do_not_change_what_greedy_means(pair, named_models, name, value):
    model = copy.deepcopy(pair.target.model)
    setattr(model.generation_config, name, value)
    model.name_or_path = f"with {name}"
    target = named_models.load((model, pair.target.tokenizer))
    assert last(greedy(pair_of(target, None, "none"), RULES["speculative_sampling"], PROMPTS, K, 24)).outcome.state == (
        "exact"
    )
    assert getattr(model.generation_config, name) == value


def test_a_reference_that_strays_is_not_called_rounding(pair, monkeypatch):
    real = LoadedModel.generate
    monkeypatch.setattr(LoadedModel, "generate", lambda *inputs: [[*ids[:-1], 3] for ids in real(*inputs)])
    result = last(greedy(pair, RULES["speculative_sampling"], PROMPTS[:1], K, 12))
    assert result.outcome.state == "consistent"
    assert result.num_close == 0
    assert not result.ties


def test_a_wrong_token_is_named_with_both_logits(named_models):
    pair = pair_of(named_models.load("big"), named_models.load("far"))
    result = next(each for each in greedy(pair, KeepsAll(), PROMPTS, K, 24) if each.outcome is not None)
    assert result.outcome.state == "differs"
    parting = result.differences[0]
    text = [*PROMPTS[parting.prompt]]
    with torch.inference_mode():
        for _ in range(parting.place):
            text.append(int(pair.target.model(torch.tensor([text])).logits[0, -1].argmax()))
        row = pair.target.model(torch.tensor([text])).logits[0, -1]
    assert parting.expected == int(row.argmax()) != parting.ours
    assert parting.expected_logit == pytest.approx(float(row.max()), abs=1e-4)
    assert parting.our_logit == pytest.approx(float(row[parting.ours]), abs=1e-4)
    assert f"{parting.our_logit:.6f}" in result.outcome.words


def test_texts_that_rounding_parts_are_consistent_and_shown(pair, named_models):
    with torch.inference_mode():
        token = int(pair.target.model(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())
    twin = next(other for other in range(300) if other != token and other not in PROMPTS[0])
    model = copy.deepcopy(pair.target.model)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[token]
    model.name_or_path = "twins"
    target = named_models.load((model, pair.target.tokenizer))
    ours = max(token, twin)
    result = last(greedy(pair_of(target, pair.draft), WritesTwin(min(token, twin), ours), PROMPTS[:1], K, 6))
    assert (result.differences[0].ours, result.differences[0].expected) == (ours, min(token, twin))
    assert result.outcome.state == "consistent"
    assert result.differences[0].our_logit == result.differences[0].expected_logit


def test_a_text_that_ends_too_early_differs(pair, monkeypatch):
    real = LoadedModel.generate
    monkeypatch.setattr(LoadedModel, "generate", lambda *inputs: [ids[:-1] for ids in real(*inputs)])
    result = last(greedy(pair, RULES["speculative_sampling"], PROMPTS[:1], K, 12))
    assert result.outcome.state == "differs"
    assert result.num_cut == 1
