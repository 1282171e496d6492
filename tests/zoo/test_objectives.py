"""What the members learn: early exits and layer dropout, distances between distributions, heads of every kind."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from specviz.drafters.block.drafter import BlockDrafter
from specviz.drafters.block.heads import read
from specviz.zoo.evaluation.evaluate import (
    BlockGuesses,
    Predicted,
    RunningSums,
    add,
    eagle_head,
    exit_at,
    look,
    medusa_head,
)
from specviz.zoo.training.block import blocks_at, drawn_anchors, states_of
from specviz.zoo.training.export import Origin, export_head, export_parts, load_head
from specviz.zoo.training.heads import (
    BiasObjective,
    EagleObjective,
    EagleTrainingHead,
    MedusaHeads,
    MedusaObjective,
    build_head,
    features_of,
    fresh_parts,
    head_objective,
)
from specviz.zoo.training.model import build_model, dropout_rates, layer_outputs, output_logits
from specviz.zoo.training.objectives import DISTANCES, Distil, NextTokenWithExits, objective_of
from specviz.zoo.training.train import Trainer
from tests.helpers.eagle_heads import loaded
from tests.helpers.small_zoo import BLOCK, DEEP, DISTILLED, EAGLE, MEDUSA, RECIPE

VOCAB = 40
LAYERS = DEEP.shape.num_layers


@pytest.fixture(scope="module")
def target():
    return build_model(DEEP.shape, DEEP.seed, VOCAB, 0).eval().requires_grad_(False)


@pytest.fixture
def windows():
    return torch.randint(0, VOCAB, (4, 17), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_all_layers_kept_is_the_models_own_forward(attention, windows):
    model = build_model(DEEP.shape, DEEP.seed, VOCAB, 0, attention).eval()
    with torch.inference_mode():
        own = model(input_ids=windows, output_hidden_states=True)
        outputs = layer_outputs(model, windows, torch.ones(LAYERS, len(windows)))
        assert torch.allclose(output_logits(model, outputs[-1]), own.logits, atol=1e-5)
        for mine, theirs in zip(outputs[:-1], own.hidden_states[1:-1], strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_dropped_layer_is_left_out_for_its_row_alone(target, windows):
    keep = torch.ones(LAYERS, len(windows))
    keep[1, 2] = 0
    full, dropped = (layer_outputs(target, windows, kept) for kept in (torch.ones_like(keep), keep))
    assert torch.equal(dropped[1][2], dropped[0][2])
    assert torch.equal(dropped[1][:2], full[1][:2])
    assert not torch.equal(dropped[2][2], full[2][2])


def test_dropout_grows_exponentially_from_nothing():
    rates = dropout_rates(5, 0.2)
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(0.2)
    growth = [(later + 0.2) / (earlier + 0.2) for earlier, later in pairwise(rates)]
    assert growth == pytest.approx([2**0.25] * 4)


def test_exits_take_turns_and_share_the_weight(windows):
    model = build_model(DEEP.shape, DEEP.seed, VOCAB, 0)
    certain = replace(DEEP, early_exit=replace(DEEP.early_exit, dropout=0.0))
    objective = objective_of(certain, model, None)
    hidden = layer_outputs(model, windows[:, :-1], torch.ones(LAYERS, len(windows)))
    last, *exits = (
        cross_entropy(output_logits(model, row).transpose(1, 2), windows[:, 1:]) for row in (hidden[-1], *hidden[:2])
    )
    for step in range(4):
        expected = 0.75 * last + 0.25 * exits[step % 2]
        assert objective.loss(*objective.inputs(windows, step)).item() == pytest.approx(expected.item(), abs=1e-5)


def test_layer_dropout_follows_the_step_and_its_rates(windows):
    objective = NextTokenWithExits(build_model(DEEP.shape, DEEP.seed, VOCAB, 0), DEEP.early_exit, DEEP.seed)
    first, again, other = (objective.inputs(windows, step)[1] for step in (3, 3, 4))
    assert torch.equal(first, again)
    many = torch.stack([objective.inputs(windows, step)[1] for step in range(400)])
    assert not torch.equal(first, other)
    assert (1 - many.mean((0, 2))).tolist() == pytest.approx(dropout_rates(LAYERS, 0.5), abs=0.05)


def test_distances_by_hand():
    p, q = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.2, 0.6]).log()
    assert DISTANCES["total_variation"](p, q).item() == pytest.approx(1 - (0.2 + 0.2 + 0.2))
    by_hand = sum(a * (torch.tensor(a).log() - torch.tensor(b).log()) for a, b in ((0.5, 0.2), (0.3, 0.2), (0.2, 0.6)))
    assert DISTANCES["forward_kl"](p, q).item() == pytest.approx(by_hand.item(), abs=1e-6)
    assert DISTANCES["reverse_kl"](q, p).item() == pytest.approx(by_hand.item(), abs=1e-6)
    assert all(distance(p, p).item() == pytest.approx(0, abs=1e-6) for distance in DISTANCES.values())


@pytest.mark.parametrize("distance", DISTANCES)
def test_distillation_brings_the_draft_nearer(distance, target, windows):
    recipe = replace(DISTILLED, distillation=replace(DISTILLED.distillation, loss=distance))
    model = build_model(recipe.shape, recipe.seed, VOCAB, 0)
    objective = Distil(model, target, distance)
    trainer = Trainer.start(recipe, model, objective, torch.device("cpu"))
    losses = []
    for step in range(12):
        trainer.step = min(step, 1)  # at the full learning rate
        losses.append(trainer.update(windows, objective.loss).item())
    assert losses[-1] < losses[0]


def test_medusa_starts_as_the_targets_own_head(target, windows):
    head = build_head(MEDUSA, target)
    features = features_of(target, windows)
    for logits in head(features, target.lm_head):
        assert torch.allclose(logits, target.lm_head(features), atol=1e-6)


def test_medusa_with_a_shared_output_matrix_says_the_same_and_stores_none(target, windows):
    shared = build_head(replace(MEDUSA, heads=replace(MEDUSA.heads, own_output=False)), target)
    features = features_of(target, windows)
    rows = zip(shared(features, target.lm_head), build_head(MEDUSA, target)(features, target.lm_head), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in rows)
    assert not [name for name in shared.state_dict() if name.endswith("1.weight")]


def test_the_eagle_head_never_looks_ahead(target, windows):
    """Changing token t+2 and its feature leaves what is predicted from t and t+1 alone."""
    head = build_head(EAGLE, target).eval()
    other = windows.clone()
    other[:, 9] = (other[:, 9] + 1) % VOCAB
    with torch.inference_mode():
        one, two = (eagle_head(target, head, look(target, tokens)).logits for tokens in (windows, other))
    assert torch.allclose(one[:, :8], two[:, :8], atol=1e-6)
    assert not torch.allclose(one[:, 8:], two[:, 8:], atol=1e-6)


@pytest.mark.parametrize("recipe", [MEDUSA, EAGLE], ids=["medusa", "eagle"])
def test_heads_learn_what_the_target_says_later(recipe, target, windows):
    head = build_head(recipe, target)
    objective = head_objective(head, target)
    trainer = Trainer.start(recipe, head, objective, torch.device("cpu"))
    before = {name: value.clone() for name, value in target.state_dict().items()}
    losses = []
    for step in range(30):
        trainer.step = min(step, 1)
        losses.append(trainer.update(windows, objective.loss).item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


@pytest.mark.parametrize("recipe", [MEDUSA, EAGLE], ids=["medusa", "eagle"])
def test_exported_heads_load_and_say_the_same(recipe, target, windows, tmp_path):
    head = build_head(recipe, target)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    export_head(head, "fable-target", Origin(recipe, 0), tmp_path / recipe.name)
    loaded = load_head(tmp_path / recipe.name, target)
    seen = look(target, windows)
    say = {
        MedusaHeads: lambda head: medusa_head(target, head, 1, None, seen),
        EagleTrainingHead: lambda head: eagle_head(target, head, seen),
    }[type(loaded)]
    with torch.inference_mode():
        assert torch.allclose(say(head).logits, say(loaded).logits, atol=5e-3)
        assert say(loaded).shift == {MedusaHeads: 2, EagleTrainingHead: 1}[type(loaded)]


def test_a_fresh_medusa_head_repeats_the_targets_row_for_a_later_token(target, windows):
    said = medusa_head(target, build_head(MEDUSA, target), 1, None, look(target, windows))
    assert torch.allclose(said.logits, target(windows).logits[:, :-2], atol=1e-5)
    assert said.shift == 2


class Oracle(torch.nn.Module):
    """Heads that know the target's later rows: head j at t gives the row at t+1+j."""

    own_output = True

    def __init__(self, logits):
        super().__init__()
        self.rows = [torch.roll(logits, -1 - index, dims=1) for index in range(2)]

    def forward(self, features, output):
        return self.rows


def test_medusa_is_taught_the_row_that_each_head_speaks_about(target, windows):
    oracle = Oracle(target(windows[:, :-1]).logits)
    objective = MedusaObjective(oracle, target)
    assert objective.loss(*objective.inputs(windows, 0)).item() == pytest.approx(0, abs=1e-5)


@torch.no_grad()
def test_a_bias_is_taught_the_row_that_follows_the_token_that_it_reads(target, windows):
    """Place by place: head j at t with token t+1+j against the target's row there, by the matrices alone."""
    heads, parts = build_head(MEDUSA, target), fresh_parts(MEDUSA, target)
    for parameter in parts.parameters():
        parameter.normal_()
    bias = parts.markov
    objective = BiasObjective(parts, heads, target, "total_variation")
    tokens, total = windows[:, :-1], 0.0
    features, p = features_of(target, tokens), target(tokens).logits.softmax(-1)
    for j, rows in enumerate(heads(features, target.lm_head)):
        distances = []
        for text in range(len(tokens)):
            for t in range(tokens.shape[1] - 1 - j):
                added = bias.state_dict()[f"{j}.weight"] @ bias.embed.weight[tokens[text, t + 1 + j]]
                q = (rows[text, t] + added).softmax(-1)
                distances.append(1 - torch.minimum(p[text, t + 1 + j], q).sum())
        total += torch.stack(distances).mean().item() / 2
    assert objective.loss(*objective.inputs(windows, 0)).item() == pytest.approx(total, abs=1e-5)


def test_a_bias_begins_by_adding_nothing_and_learns_while_heads_and_target_stay(target, windows):
    heads, parts = build_head(MEDUSA, target).requires_grad_(False), fresh_parts(MEDUSA, target)
    assert not parts.markov(1, windows).any()
    objective = BiasObjective(parts, heads, target, "forward_kl")
    trainer = Trainer.start(MEDUSA, parts, objective, torch.device("cpu"))
    before = [value.clone() for value in (*target.state_dict().values(), *heads.state_dict().values())]
    losses = []
    for step in range(30):
        trainer.step = min(step, 1)
        losses.append(trainer.update(windows, objective.loss).item())
    assert losses[-1] < 0.9 * losses[0]
    after = (*target.state_dict().values(), *heads.state_dict().values())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_an_exported_bias_loads_with_its_heads_and_says_the_same(target, windows, tmp_path):
    head, parts = build_head(MEDUSA, target), fresh_parts(MEDUSA, target)
    bias = parts.markov
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    export_head(head, "fable-target", Origin(MEDUSA, 0), tmp_path / "heads")
    assert load_head(tmp_path / "heads", target).markov is None
    export_parts(parts, Origin(MEDUSA, 0), tmp_path / "heads")
    loaded, seen = load_head(tmp_path / "heads", target), look(target, windows)
    with torch.inference_mode():
        with_bias, alone = (medusa_head(target, loaded, 1, each, seen).logits for each in (loaded.markov, None))
        assert torch.allclose(with_bias - alone, bias(1, windows[:, 2:]), atol=1e-2)
    assert (loaded.markov(1, windows) - bias(1, windows)).abs().max() < 1e-2


@pytest.fixture(scope="module")
def deeper():
    """A target of which a block's head reads three different layers."""
    shape = replace(DEEP.shape, num_layers=6)
    return build_model(shape, DEEP.seed, VOCAB, 0).eval().requires_grad_(False)


def random_block(target):
    """A block's head with random weights, and what is fitted to it."""
    head, parts = build_head(BLOCK, target), fresh_parts(BLOCK, target)
    for parameter in (*head.parameters(), *parts.parameters()):
        torch.nn.init.normal_(parameter, std=0.3)
    return head.eval().requires_grad_(False), parts


def test_a_block_is_trained_as_it_drafts(deeper, windows, tmp_path):
    """The exported head, read by the product, guesses along a text what the evaluation says of it."""
    head, parts = random_block(deeper)
    folder = tmp_path / "block"
    export_head(head, "fable-target", Origin(BLOCK, 0), folder)
    export_parts(parts, Origin(BLOCK, 0), folder)
    config = json.loads((folder / "config.json").read_text())
    state = load_file(folder / "model.safetensors") | load_file(folder / "markov.safetensors")
    product, report = read(config, state, loaded(deeper))
    assert not report.missing
    assert not report.unused
    seen = look(deeper, windows)
    guesses = BlockGuesses(deeper, load_head(folder, deeper))
    tokens = windows[0]
    states = torch.cat([seen.hidden[layer][0, :-1] for layer in product.hidden_layers], -1)
    for biased, bias in ((True, guesses.head.markov), (False, None)):
        along = BlockDrafter(product, biased=biased).along(tokens, states)(torch.tensor([2]), 9)
        for depth, (rows, _) in enumerate(along, start=1):
            with torch.inference_mode():
                said = guesses.depth(depth, bias, seen)
            assert torch.allclose(rows[0], said.logits[0, 0], atol=1e-4)  # the first anchor is the token 1
        assert depth == BLOCK.heads.num_heads


@torch.no_grad()
def test_a_blocks_bias_is_taught_the_targets_row_behind_the_token_that_it_reads(deeper, windows):
    """Anchor by anchor and depth by depth; the confidence head is taught how much both overlap."""
    head, parts = random_block(deeper)
    objective = BiasObjective(parts, head, deeper, "total_variation")
    inputs = objective.inputs(windows, 3)
    tokens = windows[:, :-1]
    p = deeper(tokens).logits.softmax(-1)
    anchors = drawn_anchors(head, tokens, 3)
    states, _ = states_of(head, deeper, tokens)
    x, places = blocks_at(head, deeper, tokens, anchors)
    features = head(states, x, places, deeper)
    weights, total = parts.state_dict(), 0.0
    for depth in range(3):
        losses = []
        for text in range(len(tokens)):
            for block, anchor in enumerate(anchors[text].tolist()):
                before = tokens[text, anchor + depth]
                row = weights["markov.embed.weight"][before]
                feature = features[text, block, depth + 1]
                q = (deeper.lm_head(feature) + weights[f"markov.{depth}.weight"] @ row).softmax(-1)
                overlap = torch.minimum(p[text, anchor + depth], q).sum()
                said = weights["confidence_head.proj.weight"][0] @ torch.cat([feature, row])
                said = (said + weights["confidence_head.proj.bias"][0]).sigmoid()
                losses.append(1 - overlap - overlap * said.log() - (1 - overlap) * (1 - said).log())
        total += torch.stack(losses).mean().item() / 3
    assert objective.loss(*inputs).item() == pytest.approx(total, abs=1e-5)


def test_eagle_is_taught_the_feature_that_follows(target, windows):
    wanted = features_of(target, windows[:, :-1])[:, 1:]
    objective = EagleObjective(lambda features, embedded, rotary: wanted, target)
    _, _, goal = EagleObjective(build_head(EAGLE, target).eval(), target).inputs(windows, 0)
    inputs = (wanted, target.model.embed_tokens(windows[:, 1:-1]), goal)
    p = target.lm_head(wanted).log_softmax(-1)
    entropy = -(p.exp() * p).sum(-1).mean()
    assert objective.loss(*inputs).item() == pytest.approx(0.1 * entropy.item(), abs=1e-5)


@pytest.mark.parametrize("shift", [1, 2])
def test_a_shifted_prediction_is_measured_against_the_token_it_is_about(shift, target, windows):
    logits = target(windows[:, :-1]).logits
    whole, part = RunningSums(), RunningSums()
    num_bytes = torch.ones(VOCAB, dtype=torch.long)
    add(part, logits.log_softmax(-1), Predicted(logits[:, shift:], shift), windows[:, 1:], num_bytes)
    add(whole, logits[:, shift:].log_softmax(-1), Predicted(logits[:, shift:]), windows[:, 1 + shift :], num_bytes)
    assert part.overlap == pytest.approx(part.num_positions, rel=1e-5)
    assert part.agreement == part.num_positions == whole.num_positions
    assert part.nats == pytest.approx(whole.nats, rel=1e-6)


def test_no_layer_is_dropped_in_validation(windows):
    model = build_model(DEEP.shape, DEEP.seed, VOCAB, 0).eval()
    assert NextTokenWithExits(model, DEEP.early_exit, DEEP.seed).inputs(windows, 3)[1].all()


def test_an_exit_is_the_heads_word_on_its_layers_normed_state(target, windows):
    seen = look(target, windows)
    unnormed = layer_outputs(target, windows, torch.ones(LAYERS, len(windows)))[1]
    assert torch.allclose(exit_at(target, 2, seen).logits, output_logits(target, unnormed), atol=1e-5)


def test_a_recipe_with_both_shape_and_heads_is_refused():
    with pytest.raises(ValueError, match="either shape or heads"):
        replace(RECIPE, heads=MEDUSA.heads)


def test_a_recipe_that_names_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"medusa, eagle, block \(got 'medussa'\)"):
        replace(MEDUSA.heads, kind="medussa")
    with pytest.raises(ValueError, match=r"total_variation.*got 'kl'"):
        replace(DISTILLED.distillation, loss="kl")
    with pytest.raises(ValueError, match="exits"):
        replace(DEEP, early_exit=replace(DEEP.early_exit, layers=(1, 3)))
