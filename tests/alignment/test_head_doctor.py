"""The head doctor: a fault planted in how a head is fed is named with its cure, and a healthy head names none."""

from itertools import chain

import numpy as np
import pytest
import torch

from specviz.alignment.ahead import read_states
from specviz.alignment.causes import head_doctor
from specviz.alignment.causes.head_doctor import CHAT, LAST_NORM, OTHER_START, PLAIN, SAYS, Convention, HeadDoctor
from specviz.cli.doctor import doctor_text
from specviz.cli.main import main
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.heads import load_heads
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.prompts import prompts_file
from tests.helpers.eagle_heads import HIDDEN
from tests.helpers.head_formats import folder_of, speculators_eagle3, speculators_peagle, vllm_medusa
from tests.helpers.tiny_models import tiny, tiny_tokenizer

pytestmark = pytest.mark.slow

KINDS = [[each["text"] for each in kind["prompts"]] for kind in prompts_file()["kinds"]]
PROMPTS = list(chain.from_iterable(zip(*KINDS, strict=False)))


@pytest.fixture(scope="module")
def pool():
    return ModelPool(allow_any=True)


@pytest.fixture(scope="module")
def doctor(pool):
    target = pool.load("fable-target")
    return HeadDoctor(load_heads(pool, "fable-eagle", "eagle", target), target, PROMPTS)


@pytest.fixture(scope="module")
def healthy(doctor):
    return doctor.examine()


def test_a_healthy_head_names_none(healthy):
    assert healthy.best is None
    assert {trial.field for trial in healthy.trials} == {"layer", "row", "position", "skipped", "text"}
    assert "no other convention accepts more" in doctor_text(healthy)


PLANTED = [
    Convention(layer=-1),
    Convention(row=1),
    Convention(row=-1),
    Convention(position=-1),
    Convention(position=1),
    Convention(skipped=LAST_NORM),
    Convention(skipped="layers.0.post_attention_layernorm"),
]


@pytest.mark.parametrize("served", PLANTED, ids=str)
def test_a_planted_fault_is_named_with_its_cure(doctor, healthy, served):
    found = doctor.examine(served)
    assert found.best.convention == Convention()
    assert found.best.agreement == pytest.approx(healthy.served)
    assert (sum(healthy.served) - sum(found.served)) / len(found.served) == pytest.approx(found.best.gain)
    assert SAYS[found.best.field] in doctor_text(found)


def test_the_agreement_is_the_drafters_own(doctor):
    """At every depth the rows are those of a head that reads the text token by token."""
    text = doctor._write(PLAIN)[0]
    head, tokens = doctor._heads.module, torch.tensor([*text.prompt, *text.ids])
    (last,) = read_states(doctor._target, [(-1,)], tokens)
    along = EagleDrafter(head, 1, 1).along(tokens, last)
    wide = [row[0] for row, _ in along(torch.tensor([42]), head_doctor.NUM_DEPTHS)]
    rows = head.rows()
    hidden = head(head.fuse(last[:41]), tokens[1:42], torch.arange(1, 42), rows, None)[-1:]
    for depth, logits in enumerate(wide):
        torch.testing.assert_close(head.logits(hidden)[0], logits, rtol=1e-4, atol=1e-4)
        place = torch.tensor([42 + depth])
        hidden = head(hidden, tokens[42 + depth : 43 + depth], place, rows, None)


@pytest.fixture(scope="module")
def small(pool):
    """A random target with a chat template."""
    tokenizer = tiny_tokenizer(320, chat=True)
    return pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tokenizer))


@pytest.fixture
def examined(small, tmp_path, monkeypatch):
    """The diagnosis of a head from its files, on a few short texts."""
    monkeypatch.setattr(head_doctor, "NUM_TEXTS", 4)
    monkeypatch.setattr(head_doctor, "FEWEST_PROMPTS", 4)
    monkeypatch.setattr(head_doctor, "NUM_TOKENS", 12)

    def examine(made, kind="eagle", **changes):
        config, state = made
        folder = folder_of(tmp_path / f"head{len(list(tmp_path.iterdir()))}", {**config, **changes}, state)
        return HeadDoctor(load_heads(None, folder, kind, small), small, PROMPTS[:4]).examine()

    return examine


LAYERS = "eagle_aux_hidden_state_layer_ids"
FLAGS = {"norm_output": True, "norm_before_residual": True}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({LAYERS: [3, 5, 6]}, "states from one layer earlier"),
        ({LAYERS: [1, 3, 4]}, "states from one layer later"),
        ({"norm_output": False}, "norm_output the other way round"),
        ({"norm_before_residual": False}, "norm_before_residual the other way round"),
    ],
)
def test_a_file_that_says_otherwise_is_tried_as_it_should_be(examined, small, told, words):
    made = speculators_eagle3(small, **FLAGS)
    healthy, faulty = examined(made), examined(made, **told)
    (trial,) = [trial for trial in faulty.trials if trial.words == words]
    assert trial.agreement == pytest.approx(healthy.served, abs=1e-6)
    assert faulty.served != pytest.approx(healthy.served, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "kind", "fields"),
    [
        (speculators_peagle, "eagle", {"layer", "row", "position", "skipped", "flipped", "text"}),
        (vllm_medusa, "medusa", {"layer", "row", "skipped", "text"}),
    ],
)
def test_every_kind_of_heads_is_asked_what_it_can_be_asked(examined, small, make, kind, fields):
    found = examined(make(small), kind)
    assert {trial.field for trial in found.trials} == fields
    assert {trial.convention.text for trial in found.trials} == {PLAIN, CHAT, OTHER_START} - (
        set() if small.tokenizer.bos_token_id is not None else {OTHER_START}
    )
    assert all(0 < value < 1 for trial in found.trials for value in trial.agreement)


def test_too_few_prompts_are_refused(doctor):
    with pytest.raises(SpecvizError, match=r"at least 8 prompts .got 1."):
        HeadDoctor(doctor._heads, doctor._target, ["a"])


def test_the_command_says_what_it_found_and_its_exit_code(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(head_doctor, "NUM_TEXTS", 4)
    monkeypatch.setattr(head_doctor, "FEWEST_PROMPTS", 4)
    monkeypatch.setattr(head_doctor, "NUM_TOKENS", 16)
    told = '{"messages": [{"role": "user", "content": "?"}, {"role": "tool", "content": "!"}]}\n'
    texts = [f'{{"prompt": "{each}"}}\n' for each in ("One", "Two", "A", "Tom")]
    (tmp_path / "prompts.jsonl").write_text("".join([*texts, told]))
    assert main(["doctor", "fable-medusa", "--prompts", str(tmp_path / "prompts.jsonl")]) in (0, 1)
    out, err = capsys.readouterr()
    assert "1 row left out, which only a chat template writes (line 5: answers of tools)" in err
    assert out.startswith("fable-medusa for fable-target: agreement 0.")
    assert "(4 texts)" in out
    assert main(["doctor", "no-such-head/none", "--target", "fable-target"]) == 2


@pytest.mark.parametrize(("num_better", "is_better"), [(5, False), (8, True)])
def test_a_gain_that_some_of_the_prompts_share_by_chance_names_nothing(num_better, is_better):
    prompt_of, base = np.arange(48) % 8, np.full((48, 3), 0.4)
    found = base + np.where(prompt_of < num_better, 0.05, -0.001)[:, None]
    assert head_doctor._trial(Convention(), "row", "", base, found, prompt_of, 8).is_better is is_better
