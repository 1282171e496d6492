"""Formats of draft heads: each says what its definition says, written out plainly here; the rest is refused by name."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from specviz.alignment.causes.reading import twin
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded
from specviz.decoding.forward.products import products_of, with_products
from specviz.decoding.sampling import Sampling
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.eagle.heads import read
from specviz.drafters.heads import KINDS, load_heads
from specviz.drafters.medusa.heads import read as read_medusa
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from tests.helpers import eagle_heads
from tests.helpers.compiled_code import compiled_products
from tests.helpers.eagle_heads import HIDDEN, SlowHead, _random, eagle, target_of, texts
from tests.helpers.head_formats import (
    EAGLE3_NORMS,
    IDS,
    SAMPLES,
    PlainHead,
    folder_of,
    gemma_target,
    peagle_outside,
    speculators_eagle3,
    speculators_mtp,
    speculators_peagle,
    vllm_medusa,
    widen,
    wrapped_eagle,
)
from tests.helpers.tiny_models import tiny, tiny_tokenizer

DOCUMENT = Path(__file__).parents[2] / "assets" / "docs" / "methods.md"
DRAFTED = [4, 9]
AUX = "eagle_aux_hidden_state_layer_ids"
DEEPSEEK = {(1, 4, 6): (2, 5, 7), (3, 5, 6): (3, 5, 6)}


@pytest.fixture(scope="module")
def target():
    return target_of(layers=8)


def states_of(head, length=6, hidden=HIDDEN):
    return _random(9)(length, hidden * len(head.hidden_layers)).double()


def rollout(head, states, tokens, drafted):
    """Logits of each depth, a row at a time behind the text."""
    rows, ids = head.rows(), torch.tensor(tokens[1:])
    features = head(head.fuse(states), ids, torch.arange(1, len(tokens)), rows, None)[-1:]
    said = [head.logits(features)[0]]
    for depth, token in enumerate(drafted):
        place = torch.tensor([len(tokens) + depth])
        features = head(features, torch.tensor([token]), place, rows, None)
        said.append(head.logits(features)[0])
    return torch.stack(said)


FORMS = {
    "eagle3": {},
    "eagle3, a Llama's layer": {"model": "llama"},
    "eagle3, biases": {"bias": True},
    "eagle3, two layers": {"layers": 2},
    "eagle3, five states": {"aux": (0, 1, 3, 6, 7)},
    "eagle3, one state": {"aux": (4,)},
    "eagle3, the target's output": {"own_output": False},
    "EAGLE-3.1, norm_before_residual": {"norm_before_residual": True},
    "EAGLE-3.1, norm_before_fc": {"norm_before_fc": True},
    "EAGLE-3.1, fc_norm": {"fc_norm": True},
    "EAGLE-3.1, norm_output": {"norm_output": True},
    "EAGLE-3.1, all of them": {"layers": 3, "aux": (1, 2, 3, 4), **EAGLE3_NORMS},
}
MADE = {
    name: (lambda options: lambda target: speculators_eagle3(target, **options))(each) for name, each in FORMS.items()
}
MADE["mtp"] = speculators_mtp


@pytest.mark.parametrize("name", MADE)
def test_a_speculators_head_says_at_every_depth_what_its_definition_says(name, target):
    config, state = MADE[name](target)
    head, report = read(config, state, target)
    states, tokens = states_of(head), texts(7, 12)
    expected = PlainHead(config, state, target).rollout(states, tokens, DRAFTED)
    torch.testing.assert_close(rollout(head, states, tokens, DRAFTED), expected, rtol=1e-5, atol=1e-5)
    assert (set(report.used), report.unused, report.missing) == (set(state), (), ())


EAGLE_1 = {"EAGLE": eagle, "EAGLE, biases": lambda target: eagle(target, qkv_bias=True), "wrapped": wrapped_eagle}


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*MADE, *EAGLE_1])
def test_compiled_code_reads_every_format_as_torch_does(name, dtype, monkeypatch):
    """A text in two pieces, then two branches, each behind its own first row. What is given is not written over."""
    widen(monkeypatch)
    target = target_of(layers=8, dtype=dtype)
    head = read(*(MADE | EAGLE_1)[name](target), target)[0]
    states, ids, places = (
        states_of(head, 9, eagle_heads.HIDDEN).to(dtype),
        torch.tensor(texts(9, 12)),
        torch.arange(1, 10),
    )
    branches = torch.ones(4, 9, dtype=torch.bool).tril(5)
    branches[2:, 5:] = torch.tensor([[0, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)

    def features_of(reader):
        given = reader.fuse(states)
        before, rows, made = given.clone(), reader.rows(), []
        for part, see in ((slice(0, 1), None), (slice(1, 5), None), (slice(5, 9), branches)):
            made.append(reader(given[part], ids[part], places[part], rows, see))
        made.append(reader(given[:1].expand(3, -1), ids[:3], places[6:9], rows, None))  # rows in one place
        assert torch.equal(given, before)
        return torch.cat(made), rows

    told, plain = features_of(head)
    own, rows = features_of(with_products(head, compiled_products()))
    assert plain._compiled is None
    assert rows._compiled is not None
    error = (own - told).abs().max() / told.abs().max()
    assert error < (1e-5 if dtype == torch.float32 else 3e-2)


def test_a_head_that_compiled_code_reads_has_copies_without_a_norm(target):
    head = with_products(read(*speculators_eagle3(target), target)[0], compiled_products())
    for norm in head.norms():
        double = twin(head)
        double.set_submodule(norm, torch.nn.Identity())
        assert not list(double.get_submodule(norm).parameters())
        assert list(head.get_submodule(norm).parameters())
        assert products_of(double.fc) is products_of(head.fc)


def test_a_speculators_head_without_its_projection_lacks_it(target):
    config, state = speculators_eagle3(target)
    state.pop("fc.weight")
    assert read(config, state, target)[1].missing == ("fc.weight",)


@pytest.mark.parametrize("mask", ["speculators", "mask_token_id", "pard_token", "ptd_token_id"])
@pytest.mark.parametrize("norms", [{}, {"norm_before_fc": True}, {"fc_norm": True, "layers": 2}])
def test_peagle_drafts_all_depths_in_one_pass_behind_masks(norms, mask, target):
    config, state = speculators_peagle(target, **norms)
    held = (config, state) if mask == "speculators" else peagle_outside(config, state, mask)
    head = read(*held, target)[0]
    states, tokens = states_of(head), texts(7, 12)
    plain = PlainHead(config, state, target)
    masks = plain.state["mask_hidden"][0].expand(2, -1)
    hidden = plain.forward(plain.fuse(torch.cat([states, masks])), [*tokens[1:], 3, 3])
    expected = plain.logits(hidden[-3:]).softmax(-1)
    drafter = EagleDrafter(head, 4, 8, draws=True)
    draft = drafter.draft(Context(tuple(tokens), Sampling(), Seeded(1), 12, states), 3)
    torch.testing.assert_close(torch.stack(list(draft.probs)), expected, rtol=1e-5, atol=1e-6)
    assert drafter.work.calls == 1


def test_peagles_tree_is_made_of_the_likeliest_tokens_of_every_depth(target):
    config, state = speculators_peagle(target)
    head = read(config, state, target)[0]
    states, tokens = states_of(head), texts(7, 12)
    probs = torch.stack(list(EagleDrafter(head, 4, 8, draws=True).draft(_context(tokens, states), 2).probs))
    drafter = EagleDrafter(head, 3, 12)
    tree = drafter.draft(_context(tokens, states), 2)
    first, second = (row.topk(3).indices.tolist() for row in probs)
    paths = {(token,) for token in first} | {(one, two) for one in first for two in second}
    assert {_path(tree, node) for node in range(len(tree))} == paths
    assert drafter.work.calls == 1


@pytest.mark.parametrize("draws", [True, False], ids=["chain", "tree"])
@pytest.mark.parametrize(("make", "filled"), [(speculators_peagle, "together"), (speculators_eagle3, None)])
def test_only_a_head_that_drafts_all_depths_in_one_pass_says_so(make, filled, draws, target):
    head = read(*make(target), target)[0]
    draft = EagleDrafter(head, 3, 12, draws=draws).draft(_context(texts(7, 12), states_of(head)), 2)
    assert draft.evidence.get("filled") == filled


def _context(tokens, states):
    return Context(tuple(tokens), Sampling(), Seeded(1), 12, states)


def _path(tree, node):
    return () if node < 0 else (*_path(tree, tree.parents[node]), tree.tokens[node])


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "with norms"])
def test_a_wrapped_eagle_head_is_the_head_inside(norms, target):
    config, state = wrapped_eagle(target, norms=norms)
    head, report = read(config, state, target)
    bare = {name.removeprefix("model."): tensor.double() for name, tensor in state.items()}
    slow = SlowHead(config["model"], bare, target)
    features, tokens = _random(2)(5, HIDDEN).double(), texts(5, 12)
    got = head(features, torch.tensor(tokens), torch.arange(1, 6), head.rows(), None)[-1]
    if norms:
        slow.table = torch.stack([slow._normed(row, "embedding_layernorm") for row in slow.table])
        features = torch.stack([slow._normed(row, "hidden_states_layernorm") for row in features])
    torch.testing.assert_close(got, slow.next_feature(features, tokens), rtol=1e-5, atol=1e-5)
    assert set(report.used) == set(state)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": True, "layers": 1}, {"shared": True}, {"ids": [2, 9, 4]}, {"prefix": "medusa_heads."}],
    ids=["plain", "biases", "one output", "few tokens", "prefix"],
)
def test_vllms_medusa_heads_say_what_their_tensors_say(options, target):
    config, state = vllm_medusa(target, **options)
    heads, report = read_medusa(config, state, target)
    state = {name.removeprefix("medusa_heads."): tensor.double() for name, tensor in state.items()}
    hidden = _random(3)(HIDDEN).double()
    for head, logits in enumerate(heads(hidden, target.model.lm_head)):
        row = hidden
        for number in range(config["num_hidden_layers"]):
            place = f"blocks.{head}.layers.{number}"
            row = row + silu(state[f"{place}.weight"] @ row + state.get(f"{place}.bias", 0))
        own = state[f"lm_heads.{0 if options.get('shared') else head}.weight"] @ row
        expected = torch.full((12,), float("-inf"), dtype=torch.float64)
        expected[state["token_map"].long() if "token_map" in state else slice(None)] = own
        torch.testing.assert_close(logits, expected)
    assert (len(heads), len(report.used), report.unused, report.missing) == (3, len(state), (), ())


# ---- which layers --------------------------------------------------------------------------------------------------


def in_eagle_config(*ids):
    return {"eagle_config": {AUX: list(ids)}}


COUNTED = {
    "vLLM": ({AUX: [0, 3, 6]}, [("into", 0), ("into", 3), ("into", 6)]),
    "vLLM, up to the end": ({AUX: [2, 5, 8]}, [("into", 2), ("into", 5), ("out of", 7)]),
    "SGLang, a first id of 1": (in_eagle_config(1, 3, 6), [("out of", 1), ("out of", 3), ("out of", 6)]),
    "SGLang, a first id of 2": (in_eagle_config(2, 3, 6), [("into", 2), ("into", 3), ("into", 6)]),
    "SGLang, any other": (in_eagle_config(3, 5, 6), [("out of", 3), ("out of", 5), ("out of", 6)]),
    "SGLang, Gemma 4 26B": (in_eagle_config(3, 5, 7), [("out of", 3), ("out of", 5), ("out of", 7)]),
    "SGLang, gpt-oss-120b v3": (in_eagle_config(4, 6, 8), [("into", 4), ("into", 6), ("out of", 7)]),
    "DeepSpec": ({"target_layer_ids": [1, 4, 7]}, [("out of", 1), ("out of", 4), ("out of", 7)]),
    "feature_layers": ({"feature_layers": [0, 2, 3]}, [("out of", 0), ("out of", 2), ("out of", 3)]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_head_is_given_the_states_that_go_into_and_come_out_of_the_layers_it_names(name, target):
    """The layers of the model are asked, each by its number from 0, not the reader."""
    (told, places), (config, state) = COUNTED[name], SAMPLES["EAGLE-3"](target)
    head, seen = read({**config, **told}, state, target)[0], {}
    lm = target.cached_lm()
    lm.capture(head.hidden_layers)
    lm.forward([1, 2, 3, 4])
    hooks = [
        layer.register_forward_hook(lambda _, given, out, i=i: seen.update({("into", i): given[0], ("out of", i): out}))
        for i, layer in enumerate(target.model.model.layers)
    ]
    target.model(torch.tensor([[1, 2, 3, 4]]))
    for hook in hooks:
        hook.remove()
    expected = torch.cat([seen[place][0] for place in places], dim=-1)
    torch.testing.assert_close(lm.hidden([1, 2, 3, 4, 5]), expected)


def test_ids_of_a_head_for_deepseek_are_the_layers_before_unless_the_first_is_1():
    """As SGLang's deepseek_v2.py reads them."""
    target = target_of(layers=8)
    target.model.config.model_type = "deepseek_v3"
    config, state = SAMPLES["EAGLE-3"](target)
    read_as = {ids: read({**config, **in_eagle_config(*ids)}, state, target)[0].hidden_layers for ids in DEEPSEEK}
    assert read_as == DEEPSEEK


@pytest.mark.parametrize(
    ("where", "named", "read_as"),
    [
        ("speculators", [1, 3, 4], (1, 3, 4)),
        ("top", [0, 3, 6], (0, 3, 6)),
        ("inner", [0, 3, 6], (1, 4, 7)),
        ("top", [1, 3, 4], (2, 4, 5)),
        ("inner", [2, 4, 5], (2, 4, 5)),
        ("speculators", None, (2, 4, 5)),
    ],
)
def test_layers_are_counted_as_the_tool_that_wrote_them_counts(where, named, read_as, target):
    config, state = SAMPLES["EAGLE-3"](target) if where != "speculators" else speculators_eagle3(target)
    config.pop("eagle_aux_hidden_state_layer_ids", None)
    place = config.setdefault("eagle_config", {}) if where == "inner" else config
    place |= {} if named is None else {"eagle_aux_hidden_state_layer_ids": named}
    assert read(config, state, target)[0].hidden_layers == read_as


# ---- the documents' table ------------------------------------------------------------------------------------------


def table():
    """(format, what is done with it) of the table of formats."""
    text = DOCUMENT.read_text("utf-8").split("## Formats of draft heads")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in rows[2:]}


def test_the_table_names_every_sample_and_no_other():
    assert set(table()) == set(SAMPLES)


@pytest.fixture(scope="module")
def loaded():
    model = tiny("llama", vocab_size=12, layers=8, hidden=HIDDEN)
    return ModelPool(allow_any=True).load((model, tiny_tokenizer(320)))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_read_or_refused_as_the_table_says(name, target, loaded, tmp_path):
    folder, told = folder_of(tmp_path / "head", *SAMPLES[name](target)), table()[name]
    if told == "`assistant`":  # for no Llama
        loaded = gemma_target(target)
    refusals = {}
    for kind in KINDS:
        try:
            assert load_heads(None, folder, kind, loaded).kind == kind
            assert told == f"`{kind}`"
            return
        except SpecvizError as refusal:
            refusals[kind] = str(refusal)
    assert told.startswith("refused"), refusals
    way_out = re.sub(r"[`*]", "", told.split(": ", 1)[1])
    for words in refusals.values():
        assert way_out in words


# ---- against the library itself ------------------------------------------------------------------------------------


def their_rows(module, inputs):
    """The logits of speculators' own forward of every step that it trains."""
    said = []
    module.lm_head.register_forward_hook(lambda _, __, out: said.append(out[0].double()))
    module(**inputs)
    return said


@pytest.mark.parametrize(
    "name", ["eagle3", "EAGLE-3.1, norm_before_fc", "EAGLE-3.1, all of them", "eagle3, a Llama's layer"]
)
def test_an_eagle3_head_says_what_speculators_own_forward_says(name, target):
    theirs = pytest.importorskip("speculators.models.eagle3")
    config, state = MADE[name](target)
    given = {**config, "transformer_layer_config": {**config["transformer_layer_config"], "attention_bias": False}}
    made = theirs.Eagle3SpeculatorConfig(**{key: each for key, each in given.items() if key != "speculators_config"})
    made.transformer_layer_config._attn_implementation = "eager"
    module = theirs.Eagle3DraftModel(made).double().eval()
    module.load_state_dict(state, strict=False)
    head = read(config, state, target)[0]
    states, tokens = states_of(head), texts(8, 12)
    ids = torch.tensor(tokens[1:7])
    inputs = {
        "hidden_states": states[None],
        "input_ids": ids[None],
        "document_ids": torch.zeros(1, 6, dtype=torch.long),
    }
    first, second = their_rows(module, {**inputs, "ttt_steps": 2})
    for place in (2, 4):
        said = rollout(head, states[: place + 1], tokens[: place + 2], [tokens[place + 2]])[:, IDS]
        torch.testing.assert_close(said, torch.stack([first[place], second[place]]), rtol=1e-4, atol=1e-4)


def test_an_mtp_head_says_of_the_first_token_what_speculators_own_forward_says(target):
    """Further tokens follow vLLM, which keeps one cache for all of them; their training gives each depth its own."""
    theirs = pytest.importorskip("speculators.models.mtp")
    from speculators.config import SpeculatorsConfig

    config, state = speculators_mtp(target)
    given = {**config, "speculators_config": SpeculatorsConfig(**config["speculators_config"])}
    module = theirs.MTPDraftModel(theirs.MTPSpeculatorConfig(**given)).double().eval()
    module.load_state_dict(state, strict=False)
    output = target.model.get_output_embeddings().weight
    module.embed_tokens.weight.data, module.lm_head.weight.data = target.model.get_input_embeddings().weight, output
    head = read(config, state, target)[0]
    states, tokens = states_of(head, 8), texts(8, 12)
    first = their_rows(module, {"input_ids": torch.tensor(tokens)[None], "hidden_states": states[None]})[0]
    said = [rollout(head, states[: place + 1], tokens[: place + 2], [])[0] for place in range(len(first))]
    torch.testing.assert_close(torch.stack(said), first, rtol=1e-4, atol=1e-4)
