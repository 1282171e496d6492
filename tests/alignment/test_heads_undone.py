"""Undos of heads: what the files say wrongly is tried as it should be; and the command `doctor`."""

import json
import os
import re

import pytest
import torch

from specviz.alignment.ahead import load_draft, read_states
from specviz.alignment.causes import probes
from specviz.alignment.causes.reading import NUM_DEPTHS, Reading, Subject
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.undo import heads, matrices
from specviz.cli.main import main
from specviz.decoding.sampling import Sampling
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.heads import load_heads
from specviz.models.files.hub import is_here
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds
from tests.helpers.eagle_heads import HIDDEN
from tests.helpers.head_formats import (
    dflash,
    dflash2,
    dspark,
    folder_of,
    speculators_eagle3,
    speculators_peagle,
    vllm_medusa,
)
from tests.helpers.planted_faults import FAULTS, planted
from tests.helpers.tiny_models import tiny, tiny_tokenizer

LAYERS = "eagle_aux_hidden_state_layer_ids"
FLAGS = {"norm_output": True, "norm_before_residual": True}


@pytest.fixture(scope="module")
def pool():
    return ModelPool(allow_any=True)


@pytest.fixture(scope="module")
def small(pool):
    """A random target with a chat template."""
    tokenizer = tiny_tokenizer(320, chat=True)
    return pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tokenizer))


def wide_block(target):
    """A DFlash head that reads eight places at once."""
    config, state = dflash(target)
    return {**config, "block_size": 8}, state


@pytest.fixture
def subject_of(small, pool, tmp_path):
    """A head from its files beside its target."""

    def subject(made, method="eagle", **changes):
        config, state = made
        folder = folder_of(tmp_path / f"head{len(list(tmp_path.iterdir()))}", {**config, **changes}, state)
        return Subject(load_draft(f"{method}:{folder}", pool, small), small)

    return subject


def agreements(subject, small, kinds):
    """The agreement as the files say, and with each undo of these kinds by its cure."""
    sample = TargetTexts(
        small, [TextIds(range(1, 9), range(30, 60)), TextIds(range(7, 20), range(90, 110))], Sampling()
    )
    plain = Reading(subject.module, 0, sample.texts)
    layers = subject.drafter(plain).hidden_layers
    families = [*heads.families(subject.module, small, layers), *matrices.families(subject.module)]
    undos = [undo for family in families for undo in family if undo.kind in kinds]
    found = subject.agreements([plain, *(undo.apply(plain) for undo in undos)], sample)
    own, *others = (each.tolist() for each in found)
    return own, {undo.cure: after for undo, after in zip(undos, others, strict=True)}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({LAYERS: [3, 5, 6]}, "the states of 1 layer earlier"),
        ({LAYERS: [1, 3, 4]}, "the states of 1 layer later"),
        ({LAYERS: [5, 4, 2]}, "its states in another order"),
        ({"norm_output": False}, "norm_output the other way round"),
        ({"norm_before_residual": False}, "norm_before_residual the other way round"),
    ],
)
def test_a_file_that_says_otherwise_is_tried_as_it_should_be(subject_of, small, told, words):
    made = speculators_eagle3(small, **FLAGS)
    healthy, _ = agreements(subject_of(made), small, ())
    served, others = agreements(subject_of(made, **told), small, ("feature", "setting"))
    mended = [after for cure, after in others.items() if words in cure]
    assert min(max(abs(a - b) for a, b in zip(after, healthy, strict=True)) for after in mended) < 1e-6
    assert served != pytest.approx(healthy, abs=1e-7)


SLIDES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}


@pytest.mark.parametrize(
    ("make", "told", "words"),
    [
        (dspark, {"sample_from_anchor": False}, "the first token read at the last token's own place"),
        (dflash, {"sample_from_anchor": True}, "the first token read at the first mask's place"),
        (wide_block, {"block_size": 5}, "blocks of 8 places"),
        (dflash, {"dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 3]}}, "the token id 319 as its mask"),
        (
            dflash,
            {"dflash_config": {"mask_token_id": 319, "target_layer_ids": [2, 4]}},
            "the states of 1 layer earlier",
        ),
        (dflash, {**SLIDES, "is_causal": False}, "sliding layers causal"),
        (dflash, {**SLIDES, "sliding_window": 5}, "windows one place shorter"),
        (dflash2, {"is_causal": True}, "layers that see a block both ways"),
    ],
)
def test_a_block_whose_file_says_otherwise_is_tried_as_it_should_be(subject_of, small, make, told, words):
    config, state = make(small)
    if make is dflash:
        config["dflash_config"] = {"mask_token_id": 319, "target_layer_ids": [1, 3]}
    sound = {name: value for name, value in SLIDES.items() if "layer_types" in told}
    healthy, _ = agreements(subject_of((config, state), "block", **sound), small, ())
    served, others = agreements(subject_of((config, state), "block", **told), small, ("feature", "setting"))
    mended = [after for cure, after in others.items() if words in cure]
    assert min(max(abs(a - b) for a, b in zip(after, healthy, strict=True)) for after in mended) < 1e-6
    assert served != pytest.approx(healthy, abs=1e-7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d2t: d2t + 1, "d2t one id lower"),
        (lambda d2t: (d2t + torch.arange(len(d2t))).roll(1) - torch.arange(len(d2t)), "d2t moved back by one row"),
        (lambda d2t: d2t.roll(1), "the differences of d2t moved back by one row"),
    ],
)
def test_d2t_is_read_the_other_ways(subject_of, small, change, words):
    config, state = speculators_eagle3(small, **FLAGS)
    state.pop("t2d", None)
    count = torch.arange(len(state["d2t"]))
    state["d2t"] = 2 + 2 * count - count  # every second id: each reading leads elsewhere
    healthy, _ = agreements(subject_of((config, state)), small, ())
    state["d2t"] = change(state["d2t"])
    served, others = agreements(subject_of((config, state)), small, ("ids of a head",))
    assert others[words] == pytest.approx(healthy, abs=1e-6)
    assert served != pytest.approx(healthy, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "method", "kinds"),
    [
        (speculators_peagle, "eagle", {"feature", "position", "norm", "setting", "exchange", "ids of a head", "scale"}),
        (vllm_medusa, "medusa", {"feature"}),
        (dspark, "block", {"feature", "norm", "scale", "setting"}),
    ],
)
def test_every_kind_of_heads_is_asked_what_it_can_be_asked(subject_of, small, make, method, kinds):
    subject = subject_of(make(small), method)
    layers = subject.drafter(Reading(subject.module, 0, ())).hidden_layers
    assert {family[0].kind for family in heads.families(subject.module, small, layers)} <= kinds
    assert {"feature"} <= {family[0].kind for family in heads.families(subject.module, small, layers)}


def test_a_head_along_a_text_drafts_as_one_that_reads_token_by_token(pool):
    target = pool.load("fable-target")
    head = load_heads(pool, "fable-eagle", "eagle", target).module
    tokens = torch.tensor(target.text.encode("Tom has a red ball. Mia has a red hat, and Tom has a cat. " * 3)[:48])
    (last,) = read_states(target, [(-1,)], tokens)
    along = EagleDrafter(head, 1, 1).along(tokens, last)
    wide = [row[0] for row, _ in along(torch.tensor([42]), NUM_DEPTHS)]
    rows = head.rows()
    hidden = head(head.fuse(last[:41]), tokens[1:42], torch.arange(1, 42), rows, None)[-1:]
    for depth, logits in enumerate(wide):
        torch.testing.assert_close(head.logits(hidden)[0], logits, rtol=1e-4, atol=1e-4)
        place = torch.tensor([42 + depth])
        hidden = head(hidden, tokens[42 + depth : 43 + depth], place, rows, None)


def test_a_text_of_a_single_token_is_read_at_its_only_depth(pool):
    target = pool.load("fable-target")
    subject = Subject(load_draft("fable-eagle", pool, target), target)
    ids = target.text.encode("Tom has a red ball. Mia has a red hat.")
    short, longer = TextIds(ids[:9], ids[9:10]), TextIds(ids[:9], ids[9:13])
    sample = TargetTexts(target, [short, longer], Sampling())
    found = subject.agreements([Reading(subject.module, 0, sample.texts)], sample)[0]
    first = sample.agreement_of_drafters([subject.draft.drafter()], 1)[0]
    assert found[0] == pytest.approx(first[0], abs=1e-6)
    assert (found > 0).all()


def test_undos_are_listed_again_behind_each_of_them(subject_of, small):
    """The search tries all undos on top of the one that it has kept."""
    subject = subject_of(speculators_eagle3(small, **FLAGS))
    plain = Reading(subject.module, 0, ())
    layers = subject.drafter(plain).hidden_layers
    for family in heads.families(subject.module, small, layers):
        behind = family[0].apply(plain)
        assert list(heads.families(behind.module, small, layers))
        assert list(matrices.families(behind.module))


# ---- the command doctor ----------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(probes, "NUM_TOKENS", 16)
    monkeypatch.setattr(probes, "NUM_TEXTS", 8)


def test_the_doctor_calls_a_bundled_head_sound_and_a_damaged_one_broken(few, capsys, tmp_path):
    prompts = [{"prompt": text} for text in ("One", "Two", "A", "Tom", "Mia", "The king", "Once", "def f(x):")]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in prompts))
    assert main(["doctor", "fable-medusa", "--prompts", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("fable-medusa for fable-target is sound: agreement 0.")
    assert "token pairs (frequencies behind each token) " in out
    assert "\nnext: python -m specviz bench costs" in out
    assert "looking for faults in fable-medusa: " in err
    broken = planted(FAULTS["eagle: down_proj of zeros"], tmp_path)
    assert main(["doctor", str(broken), "--prompts", str(file)]) == 1
    out, _ = capsys.readouterr()
    assert " for fable-target is broken: agreement 0." in out
    assert "\n! Every number is 0 in 1 tensor" in out


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("SPECVIZ_TEST_GET") and is_here("smollm2")), reason="SPECVIZ_TEST_GET is not set, or no smollm2"
)
@pytest.mark.parametrize("options", [[], ["--chat"]], ids=["plain", "chat"])
@pytest.mark.parametrize("name", ["smol-draft", "smol-eagle"])
def test_what_ships_for_smollm2_gets_no_false_alarm(name, options, capsys):
    assert main(["doctor", name, "--target", "smollm2", *options]) == 0
    assert "\n! " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-head/none"], "no-such-head/none"),
        (["fable-eagle", "--prompts", "few.jsonl"], "at least 8 texts that it can read .got 2 prompts."),
        (["fable-eagle", "--chat"], "none of the prompts could be used: line 1 .*chat template"),
    ],
)
def test_the_doctor_says_what_it_cannot_examine(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.jsonl").write_text('{"prompt": "One"}\n{"prompt": "Two"}\n')
    assert main(["doctor", *arguments]) == 2
    assert re.search(words, capsys.readouterr().err)
