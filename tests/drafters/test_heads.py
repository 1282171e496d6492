"""Reading draft heads: what a checkpoint may hold, what is refused and in which words, who shares what."""

import json
import multiprocessing
import pickle
import re
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from specviz.drafters.heads import KINDS, load_heads
from specviz.errors import SpecvizError
from specviz.models.files import checkpoint as weights
from specviz.models.files import hub as fetch
from specviz.models.files.checkpoint import Attached, read_tensors
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import Status, open_run
from specviz.session.workbench import Workbench
from specviz.settings import assets_dir
from tests.helpers.eagle_heads import HIDDEN as EAGLE_HIDDEN
from tests.helpers.eagle_heads import eagle3
from tests.helpers.tiny_models import tiny, tiny_tokenizer

HIDDEN, VOCAB = 32, 320


@pytest.fixture(scope="module")
def pool():
    return ModelPool(allow_any=True)


@pytest.fixture(scope="module")
def target(pool):
    tokenizer = tiny_tokenizer(VOCAB)
    return pool.load((tiny("llama", vocab_size=VOCAB, hidden=HIDDEN), tokenizer))


def medusa_state(num_heads=3, num_blocks=1, *, prefix="", hidden=HIDDEN, vocab=VOCAB, own_output=True, seed=0):
    """Random heads under the names of the public checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            place = f"{prefix}{head}.{block}.linear"
            state[f"{place}.weight"] = torch.randn(hidden, hidden, generator=generator) * 0.3
            state[f"{place}.bias"] = torch.randn(hidden, generator=generator) * 0.3
        if own_output:
            state[f"{prefix}{head}.{num_blocks}.weight"] = torch.randn(vocab, hidden, generator=generator) * 0.3
    return state


def folder_of(path, state, file="medusa_lm_head.safetensors", **config):
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(state, path / file) if file.endswith(".safetensors") else torch.save(state, path / file)
    return str(path)


def said_by(state, hidden, head, num_blocks, output=None, prefix=""):
    """The logits of one head, from the paper's formula."""
    for block in range(num_blocks):
        place = f"{prefix}{head}.{block}.linear"
        hidden = hidden + silu(state[f"{place}.weight"] @ hidden + state[f"{place}.bias"])
    return (state[f"{prefix}{head}.{num_blocks}.weight"] if output is None else output) @ hidden


LAYOUTS = {
    "ours": {"state": {}, "config": {"medusa_num_heads": 3, "medusa_num_layers": 1}},
    "public": {"state": {"num_heads": 5}, "config": {"medusa_num_heads": 2}, "file": "medusa_lm_head.pt"},
    "public, behind a prefix": {"state": {"prefix": "medusa_head."}, "config": {}, "file": "pytorch_model.bin"},
    "two blocks": {"state": {"num_blocks": 2}, "config": {"medusa_num_layers": 2}, "file": "model.safetensors"},
    "the target's output": {"state": {"own_output": False}, "config": {"medusa_own_output": False}},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_of_medusa_heads_says_what_its_tensors_say(layout, pool, target, tmp_path):
    options = {"num_heads": 3, "num_blocks": 1, "prefix": "", "own_output": True} | layout["state"]
    state = medusa_state(**options)
    files = {"file": layout["file"]} if "file" in layout else {}
    heads = load_heads(pool, folder_of(tmp_path / "h", state, **files, **layout["config"]), "medusa", target)
    output = target.model.lm_head
    hidden = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1))
    said = heads.module(hidden, output)
    assert len(said) == options["num_heads"]
    for head, logits in enumerate(said):
        own = None if options["own_output"] else output.weight
        expected = said_by(state, hidden, head, options["num_blocks"], own, options["prefix"])
        torch.testing.assert_close(logits, expected)
    assert set(heads.report.used) == set(state)
    assert (heads.report.unused, heads.report.missing) == ((), ())


def test_the_bundled_heads_load_from_the_catalogue_and_are_shared(pool):
    target = pool.load("fable-target")
    one, two = (load_heads(pool, "fable-medusa", "medusa", target) for _ in range(2))
    assert one is two
    assert one.name == "fable-medusa"
    folder = assets_dir() / "models" / "fable-medusa"
    held = load_file(folder / "medusa_lm_head.safetensors") | load_file(folder / "markov.safetensors")
    for name, tensor in one.module.state_dict().items():
        torch.testing.assert_close(tensor, held[name].float())
    assert not any(parameter.requires_grad for parameter in one.module.parameters())


def test_a_target_that_was_put_into_another_number_format_gets_heads_in_that(tmp_path):
    target = ModelPool(allow_any=True).load((tiny("llama", vocab_size=VOCAB, hidden=HIDDEN), tiny_tokenizer(VOCAB)))
    folder = folder_of(tmp_path / "heads", medusa_state())
    for dtype in (torch.float32, torch.bfloat16):
        target.model.to(dtype)
        module = load_heads(None, folder, "medusa", target).module
        assert {parameter.dtype for parameter in module.parameters()} == {dtype}


def test_another_process_does_not_wait_for_who_made_heads_here():
    shared = Attached()
    with shared._making:
        child = multiprocessing.get_context("fork").Process(target=shared.get, args=(torch.nn.Linear(1, 1), 0, list))
        child.start()
        child.join(20)
        is_over = child.exitcode == 0
        child.kill()
    assert is_over


def test_heads_that_are_shared_are_of_the_kind_that_is_asked_for(pool):
    target = pool.load("fable-target")
    assert load_heads(pool, "fable-medusa", "medusa", target).kind == "medusa"
    with pytest.raises(SpecvizError, match="hold no EAGLE head"):
        load_heads(pool, "fable-medusa", "eagle", target)


def test_heads_take_the_number_format_of_their_target(pool, tmp_path):
    wide = pool.load((tiny("llama", vocab_size=VOCAB, hidden=HIDDEN).double(), tiny_tokenizer(VOCAB)))
    state = {name: tensor.half() for name, tensor in medusa_state().items()}
    heads = load_heads(pool, folder_of(tmp_path / "h", state), "medusa", wide)
    assert {parameter.dtype for parameter in heads.module.parameters()} == {torch.float64}


def test_another_target_has_heads_of_its_own(pool, target, tmp_path):
    other = pool.load((tiny("llama", vocab_size=VOCAB, hidden=HIDDEN, seed=9), tiny_tokenizer(VOCAB)))
    folder = folder_of(tmp_path / "h", medusa_state())
    assert load_heads(pool, folder, "medusa", target) is not load_heads(pool, folder, "medusa", other)


def test_what_was_made_for_a_model_goes_with_it():
    attached, model = Attached(), torch.nn.Linear(1, 1)
    assert attached.get(model, "a", list) is attached.get(model, "a", list)
    assert attached.find(model, "b") is None
    del model
    assert len(attached._made) == 0


def test_what_was_made_for_a_model_goes_when_it_is_put_into_another_number_format():
    attached, model = Attached(), torch.nn.Linear(1, 1)
    attached.get(model, "a", lambda: "of float32")
    attached.get(model, "b", lambda: "of float32, too")
    model.double()
    assert attached.find(model, "a") is None
    assert attached.get(model, "a", lambda: "of float64") == "of float64"
    model.float()
    assert attached.find(model, "a") is attached.find(model, "b") is None


def test_tensors_of_a_whole_model_are_told_and_missing_ones_refused(pool, target, tmp_path):
    news = []
    more = folder_of(tmp_path / "more", medusa_state() | {"model.norm.weight": torch.ones(3)})
    heads = load_heads(pool, more, "medusa", target, lambda *told: news.append(told))
    assert heads.report.unused == ("model.norm.weight",)
    assert news[-1] == ("loaded more; nothing needs 1 tensor ('model.norm.weight') in its file", 1.0)
    state = medusa_state()
    del state["1.0.linear.bias"]
    with pytest.raises(SpecvizError, match=r"less is incomplete: it lacks 1 tensor \('1.0.linear.bias'\)"):
        load_heads(pool, folder_of(tmp_path / "less", state), "medusa", target)


def test_a_tensor_that_no_layout_knows_is_refused_with_its_name(pool, target, tmp_path):
    extra = {f"{head}.norm.weight": torch.ones(HIDDEN) for head in range(5)}
    words = r"h holds 5 tensors \('0.norm.weight', '1.norm.weight', '2.norm.weight', ...\) that specviz has no use for"
    with pytest.raises(SpecvizError, match=words):
        load_heads(pool, folder_of(tmp_path / "h", medusa_state() | extra), "medusa", target)


EAGLES = {
    "EAGLE-3.1, a norm per state": ({"fc_norm.0.weight": torch.ones(EAGLE_HIDDEN)}, r"'fc_norm\.0\.weight'"),
    "a bias of the MLP": ({"midlayer.mlp.down_proj.bias": torch.ones(16)}, r"'midlayer\.mlp\.down_proj\.bias'"),
}


@pytest.mark.parametrize(("extra", "words"), EAGLES.values(), ids=EAGLES)
def test_an_eagle_head_of_another_layout_is_refused_with_its_tensors_names(pool, tmp_path, extra, words):
    target = pool.load((tiny("llama", vocab_size=VOCAB, hidden=EAGLE_HIDDEN, layers=8), tiny_tokenizer(VOCAB)))
    config, state = eagle3(target, [1, 2, 3])
    idle = {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    assert load_heads(pool, folder_of(tmp_path / "ours", state | idle, **config), "eagle", target).report.unused
    with pytest.raises(SpecvizError, match=f"holds 1 tensor .{words}. that specviz has no use for"):
        load_heads(pool, folder_of(tmp_path / "other", state | extra, **config), "eagle", target)


STORED = {
    "FP8": (lambda weight: weight.to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "packed": (lambda weight: weight.to(torch.int32), "int32"),
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_heads_are_called_so(name, kind, pool, target, tmp_path):
    store, word = STORED[name]
    config, state = ({}, medusa_state()) if kind == "medusa" else eagle3(target, [1, 2, 3])
    place = "0.0.linear.weight" if kind == "medusa" else "midlayer.mlp.up_proj.weight"
    state |= {place: store(state[place]), f"{place}_scale": torch.ones(())}
    with pytest.raises(
        SpecvizError, match=f"its weights are quantised .'{place}' holds {word}.: choose the head in bf"
    ):
        load_heads(pool, folder_of(tmp_path / "h", state, **config), kind, target)


def test_heads_that_the_settings_promise_and_the_file_lacks_are_missing(pool, target, tmp_path):
    with pytest.raises(SpecvizError, match="incomplete: it lacks 6 tensors"):
        load_heads(pool, folder_of(tmp_path / "h", medusa_state(2), medusa_num_heads=4), "medusa", target)


def bias_state(rank=4, tables=3, vocab=VOCAB):
    """A random Markov bias under the names of our file."""
    generator = torch.Generator().manual_seed(1)
    names = ["embed", *map(str, range(tables))]
    return {f"markov.{name}.weight": torch.randn(vocab, rank, generator=generator) for name in names}


@pytest.mark.parametrize("tables", [1, 3])
def test_a_bias_in_a_file_beside_the_heads_says_what_its_tensors_say(tables, pool, target, tmp_path):
    state, own = medusa_state(), bias_state(tables=tables)
    folder = folder_of(tmp_path / "h", state)
    folder_of(tmp_path / "h", own, "markov.safetensors")
    heads = load_heads(pool, folder, "medusa", target).module
    for depth in range(3):
        said = heads.markov(depth, torch.tensor([5, 319]))
        table = own[f"markov.{depth if tables > 1 else 0}.weight"]
        torch.testing.assert_close(said, own["markov.embed.weight"][[5, 319]] @ table.T)
        hidden = torch.randn(HIDDEN)
        torch.testing.assert_close(heads.one(depth, hidden, None), said_by(state, hidden, depth, 1))


REFUSED = {
    "hidden size": (medusa_state(hidden=16), {}, "its hidden size must be 32, the target's .got 16."),
    "vocabulary": (medusa_state(vocab=100), {}, "its vocabulary must have 320 tokens, as the target's .got 100."),
    "one odd tensor": (
        medusa_state() | {"1.1.weight": torch.ones(7, HIDDEN)},
        {},
        "1.1.weight must be of the shape 320 x 32 .got 7 x 32.",
    ),
    "a scalar": (medusa_state() | {"0.0.linear.weight": torch.ones(())}, {}, "of the shape 32 x 32 .got one number."),
    "no heads": ({"fc.weight": torch.ones(2, 2)}, {}, "hold no Medusa heads"),
    "too many": (medusa_state() | {"99.0.linear.bias": torch.ones(HIDDEN)}, {}, "at most 32 heads .got 100."),
    "a bias of another vocabulary": (
        medusa_state() | bias_state(vocab=100),
        {},
        "markov.embed.weight must be of the shape 320 x 4 .got 100 x 4.",
    ),
    "a bias of two ranks": (
        medusa_state() | bias_state() | {"markov.1.weight": torch.ones(VOCAB, 5)},
        {},
        "markov.1.weight must be of the shape 320 x 4 .got 320 x 5.",
    ),
    "a bias of no rank": (medusa_state() | bias_state(rank=0), {}, "320 x rank, the rank from 1 to 2048 .got 320 x 0."),
    "a bias without its first matrix": (
        medusa_state() | {"markov.0.weight": torch.ones(VOCAB, 4)},
        {},
        "markov.embed.weight must be .* .got none.",
    ),
    "a flat bias": (
        medusa_state() | bias_state() | {"markov.embed.weight": torch.ones(VOCAB)},
        {},
        "rank, .* .got 320.",
    ),
    "a bias of other heads": (medusa_state() | bias_state(tables=2), {}, "for all depths or 3, one per depth .got 2."),
    "settings": (medusa_state(), {"medusa_num_layers": 10**9}, "medusa_num_layers in its config.json must be a whole"),
    "settings of a kind": (medusa_state(), {"medusa_num_heads": True}, "must be a whole number from 1 to 32 .got True"),
}


@pytest.mark.parametrize(("state", "config", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_in_words(state, config, words, pool, target, tmp_path):
    with pytest.raises(SpecvizError, match=f"^odd cannot draft for {re.escape(target.name)}: .*{words}"):
        load_heads(pool, folder_of(tmp_path / "odd", state, **config), "medusa", target)


class Harm:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_with_code_is_not_opened(pool, target, tmp_path, capsys):
    folder = folder_of(tmp_path / "h", {"0.0.linear.weight": torch.ones(2), "x": Harm()}, "medusa_lm_head.pt")
    with pytest.raises(
        SpecvizError, match=r"holds more than tensors .* so it was not opened; convert it to safetensors"
    ):
        load_heads(pool, folder, "medusa", target)
    assert capsys.readouterr().out == ""


def old_pickle(path):
    path.write_bytes(pickle.dumps({"0.0.linear.weight": 1}))


def empty_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


FILES = {
    "an old pickle": (old_pickle, "is damaged, or not a file that today's torch.save writes"),
    "an empty archive": (empty_zip, "is damaged or incomplete"),
    "a list": (lambda path: torch.save([torch.ones(2)], path), "must hold only named tensors"),
    "nested": (lambda path: torch.save({"state": {"a": torch.ones(2)}}, path), "must hold only named tensors"),
}


@pytest.mark.parametrize(("write", "words"), FILES.values(), ids=FILES)
def test_odd_files_are_refused_in_words(write, words, tmp_path):
    write(tmp_path / "medusa_lm_head.pt")
    with pytest.raises(SpecvizError, match=words):
        read_tensors([tmp_path / "medusa_lm_head.pt"])


def test_a_damaged_safetensors_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(SpecvizError, match=r"model\.safetensors is damaged"):
        read_tensors([tmp_path / "model.safetensors"])


@pytest.mark.parametrize("name", ["a.safetensors", "a.bin"])
def test_the_size_of_the_files_is_bounded_before_they_are_opened(name, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MOST_BYTES", 1000)
    path = tmp_path / name
    state = {"a": torch.zeros(1000)}
    save_file(state, path) if name.endswith("safetensors") else torch.save(state, path)
    with pytest.raises(SpecvizError, match="its weights must not exceed 1e-06 GB"):
        read_tensors([path])


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "damaged"), ("[]", "must hold an object .got list."), ("[" * 200_000, "damaged"), (" " * 2**21, "exceed")],
    ids=["broken", "a list", "deep", "large"],
)
def test_odd_settings_are_refused_in_words(text, words, pool, target, tmp_path):
    folder = folder_of(tmp_path / "h", medusa_state())
    (tmp_path / "h" / "config.json").write_text(text)
    with pytest.raises(SpecvizError, match=words):
        load_heads(pool, folder, "medusa", target)
    (tmp_path / "h" / "config.json").unlink()
    with pytest.raises(SpecvizError, match=r"it has no config\.json"):
        load_heads(pool, folder, "medusa", target)


def test_a_folder_without_weights_and_one_with_half_of_them_are_refused(pool, target, tmp_path):
    folder = folder_of(tmp_path / "h", medusa_state())
    (tmp_path / "h" / "medusa_lm_head.safetensors").unlink()
    with pytest.raises(SpecvizError, match="its folder has no weights"):
        load_heads(pool, folder, "medusa", target)
    (tmp_path / "h" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x.safetensors"}}')
    with pytest.raises(SpecvizError, match="1 of 1 weight files are missing"):
        load_heads(pool, folder, "medusa", target)


def test_safetensors_are_preferred(pool, target, tmp_path):
    safe = medusa_state(seed=1)
    folder = folder_of(tmp_path / "h", medusa_state(seed=2), "pytorch_model.bin")
    folder_of(tmp_path / "h", safe)
    heads = load_heads(pool, folder, "medusa", target)
    torch.testing.assert_close(heads.module.state_dict()["0.1.weight"], safe["0.1.weight"])


def test_a_server_of_its_own_models_refuses_other_names(target, tmp_path):
    folder = folder_of(tmp_path / "h", medusa_state())
    with pytest.raises(SpecvizError, match="offers only its own models"):
        load_heads(ModelPool(allow_any=False), folder, "medusa", target)


def test_without_a_library_the_settings_decide(target, tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "h", medusa_state())
    assert load_heads(None, folder, "medusa", target).name == "h"
    monkeypatch.setenv("SPECVIZ_ALLOW_ANY_MODEL", "0")
    with pytest.raises(SpecvizError, match="offers only its own models"):
        load_heads(None, folder, "medusa", target)


def test_a_live_switch_loads_heads_before_the_step_and_says_so():
    request = Request(target="fable-target", draft=None, prompt="Once upon a time", method="none", max_new_tokens=12)
    run = open_run(request, bench=Workbench(ModelPool()))
    list(run.events(max_steps=2))
    run.controls.set("method", "medusa")
    news = [event.message for event in run.events() if isinstance(event, Status) and event.state == "loading"]
    assert news[0] == "loading fable-medusa"
    assert [step.settings.method for step in run.trace.steps][:3] == ["none", "none", "medusa"]
    assert run.trace.footer.reason == "length"
    assert max(len(step.draft) for step in run.trace.steps) > 4


def test_an_unknown_kind_is_refused(pool, target):
    with pytest.raises(SpecvizError, match=f"must be of the kind {' or '.join(KINDS)} .got 'hydra'."):
        load_heads(pool, "fable-medusa", "hydra", target)


def test_heads_from_the_hub_are_fetched_once_with_their_weights_in_any_format(pool, target, tmp_path, monkeypatch):
    asked = []
    folder = folder_of(tmp_path / "0123abcd", medusa_state(), "medusa_lm_head.pt")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **options: asked.append(options) or folder)
    one, two = (load_heads(pool, "owner/heads", "medusa", target) for _ in range(2))
    assert one is two
    assert len(asked) == 1
    assert set(asked[0]["allow_patterns"]) == {"config.json", *fetch._HEAD_WEIGHTS}
    shutil.rmtree(folder)


def test_heads_take_no_ending_for_smaller_weights(pool, target, tmp_path):
    folder = folder_of(tmp_path / "h", medusa_state())
    with pytest.raises(SpecvizError, match="draft heads are held as their file holds them: leave out the ending"):
        load_heads(pool, f"{folder}:int8", "medusa", target)


def test_medusa_heads_are_no_eagle_head_and_say_so(pool, target, tmp_path):
    with pytest.raises(SpecvizError, match="its weights hold no EAGLE head"):
        load_heads(pool, folder_of(tmp_path / "h", medusa_state()), "eagle", target)
