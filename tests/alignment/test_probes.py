"""Faults planted in sound drafts are found and named by the lab; the sound ones are left alone."""

import copy

import numpy as np
import pytest
import torch

from specviz.alignment.ahead import load_draft
from specviz.alignment.causes import probes as faults
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.trials import Changed, Trial, agreements
from specviz.alignment.causes.weights import GROUP, coarse_words
from specviz.alignment.job import align
from specviz.alignment.types import Message, PromptRow, Shard
from specviz.decoding.sampling import Sampling
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session.workbench import workbench
from tests.helpers.planted_faults import PLANTED, findings_with, half_noised, noised

CHATS = [[{"role": "user", "content": f"Tell me about the {thing}."}] for thing in ("fox", "sea", "king", "moon")]
TOLD = "{% for message in messages %}Tell: {{ message['content'] }}\n\n{% endfor %}"
ASKED = "{% for message in messages %}<<USER>> {{ message['content'] }} <<END>>{% endfor %}<<BOT>>"
NUM_PROMPTS = 36


@pytest.fixture(scope="module")
def pool():
    return workbench().pool


def named(pool: ModelPool, name, model, tokenizer):
    model.name_or_path = name
    return pool.load((model, tokenizer))


@pytest.fixture(scope="module")
def prompts():
    texts = [each["text"] for kind in prompts_file()["kinds"] for each in kind["prompts"]]
    return [
        f"{text}{' ' * (number // len(texts))}" for number, text in zip(range(NUM_PROMPTS), texts * 3, strict=False)
    ]


def findings(prompts, draft, *, target="fable-target", max_new_tokens=32, **options):
    made = align(prompts, target=target, draft=draft, max_new_tokens=max_new_tokens, costs={}, **options)
    (own,) = made.summary.drafts
    return {finding.kind: finding for finding in own.findings}, made


def quick(names, *those):
    """The parameters of a test that is slow but for those: each is a whole job over many texts."""
    return [pytest.param(name, marks=[] if name in those else pytest.mark.slow) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", quick(["fable-draft", "fable-draft-undistilled", "fable-draft-tiny"], "fable-draft-tiny")
)
def test_in_sound_drafts_nothing_is_found(prompts, name):
    found, _ = findings(prompts, name)
    assert found == {}


@pytest.mark.slow
def test_of_a_draft_that_was_trained_on_code_alone_the_words_are_named_that_it_never_gives(prompts):
    found, _ = findings(prompts, "fable-draft-code")
    assert [*found] == ["token ids"]
    assert found["token ids"].numbers["share"] > 0.1


# ---- planted faults: each in a copy of a sound draft ----------------------------------------------------------------


CURES = {
    "temperature": "logits divided by 1.7",
    "rope": "with the target's own rope parameters",
    "layer": "layer 2 of 2",
    "template": "the draft's with",
    "tokenizer": "where the target has ##, ",
    "start": "with the start token <|endoftext|> (id 0) left out",
    "feature": "the states of the token behind",
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", quick(PLANTED, noised), ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_the_first_cause_and_its_cure_holds_on_other_texts(plant):
    first, *_ = findings_with(plant)
    assert first.kind == PLANTED[plant]
    assert CURES.get(first.kind, "") in first.words
    if first.kind not in ("bits", "token ids"):
        assert first.numbers["low"] > 0
        least = faults.LEAST_GAIN["layer"] if plant is half_noised else 0.02  # damping undoes but a part of it
        assert first.numbers["applied"] > least


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["fable-medusa", "fable-eagle"], "fable-medusa"))
def test_sound_heads_have_no_cause(prompts, name):
    found, _ = findings(prompts[:24], name)
    assert not found.keys() & faults.KINDS.keys()


def test_heads_that_are_tried_together_agree_as_each_does_alone(pool):
    target = pool.load("fable-target")
    drafter = load_draft("fable-medusa", pool, target).drafter()
    ids = target.text.encode("Tom has a red ball. Mia has a red hat, and Tom has a cat.")
    sample = TargetTexts(target, [TextIds(ids[:4], ids[4:]), TextIds(ids[:9], ids[9:14])], Sampling())
    trials = [Trial("", "", drafter), Trial("", "", Changed(drafter, divided_by=3.0))]
    together, alone = agreements(trials, sample), [agreements([each], sample)[0] for each in trials]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    assert (together[0] != together[1]).all()


def chatting(pool, name, template, called):
    sound = pool.load(name)
    tokenizer = copy.deepcopy(sound.tokenizer)
    tokenizer.chat_template = template
    return named(pool, called, copy.deepcopy(sound.model), tokenizer)


def chats(num=8):
    return [{"messages": CHATS[number % len(CHATS)], "id": number} for number in range(num)]


@pytest.mark.slow
def test_another_chat_form_that_does_no_harm_is_a_warning_said_once(pool):
    """A draft that was never trained on chats agrees no better in a form of its own."""
    target = chatting(pool, "fable-target", TOLD, "told-target")
    draft = chatting(pool, "fable-draft", ASKED, "asked-draft")
    found, made = findings(chats(), draft.name, target=target.name)
    assert found == {}
    (warning,) = [each for each in made.summary.warnings if each.startswith("asked-draft: ")]
    assert "<<USER>>" in warning
    assert warning.endswith(".")
    same, again = findings(chats(), target.name, target=target.name)
    assert same == {}
    assert not any("chat form" in each for each in again.summary.warnings)


@pytest.mark.slow
def test_another_chat_form_is_not_spoken_of_where_no_row_is_a_chat(pool, prompts):
    target = chatting(pool, "fable-target", TOLD, "told-target")
    draft = chatting(pool, "fable-draft", ASKED, "asked-draft")
    found, made = findings(prompts[:8], draft.name, target=target.name)
    assert (found, made.summary.warnings) == ({}, ())


def looked_for(pool, rows, drafts=("fable-draft",), target="fable-target"):
    request = Request(prompt="", target=target, max_new_tokens=8)
    made = [PromptRow(n, n + 1, str(n), **row) for n, row in enumerate(rows)]
    return faults.look(Shard(request, drafts, tuple(made), {}), pool).looked_for


def test_causes_are_looked_for_where_texts_suffice_and_a_chat_form_where_the_draft_has_another(pool):
    target = chatting(pool, "fable-target", TOLD, "told-target").name
    draft = chatting(pool, "fable-draft", ASKED, "asked-draft").name
    prompts, chat = {"prompt": "Once upon a time"}, {"messages": (Message("user", "Tell me."),)}
    assert looked_for(pool, [prompts] * 7) == ()
    enough = {*looked_for(pool, [prompts] * 8)}
    assert {"a damaged layer", "wrong rotary positions"} < enough
    assert "a different chat format" not in enough
    assert "a different chat format" in looked_for(pool, [chat] * 8, (draft,), target)


@pytest.mark.slow
def test_a_cut_vocabulary_is_named_with_its_ceiling(pool, prompts):
    sound = pool.load("fable-draft")
    model = copy.deepcopy(sound.model)
    model.resize_token_embeddings(2048)
    cut = named(pool, "cut", model, sound.tokenizer)
    found, made = findings(prompts, cut.name)
    (own,) = made.summary.drafts
    assert " 2,048 of the target's 4,096 ids" in found["vocabulary"].words
    assert own.alpha <= own.ceiling < 0.999
    assert found["reach"].numbers["beyond"] > 0.5  # behind a token that it has no id for it cannot read


@pytest.mark.slow
def test_a_closed_head_is_a_cut_vocabulary_too(pool, prompts):
    sound = pool.load("fable-draft")
    model = copy.deepcopy(sound.model)

    def close(_, __, logits):
        return torch.cat([logits[..., :2048], torch.full_like(logits[..., 2048:], float("-inf"))], dim=-1)

    model.lm_head.register_forward_hook(close)
    closed = named(pool, "closed", model, sound.tokenizer)
    found, made = findings(prompts, closed.name)
    (own,) = made.summary.drafts
    assert "reach" not in found
    assert own.alpha <= own.ceiling < 0.99
    assert found["vocabulary"].words


@pytest.mark.slow
def test_blindness_beyond_128_tokens_is_named_where_it_begins(pool, prompts):
    sound = pool.load("fable-draft")
    model = copy.deepcopy(sound.model)

    def scramble(_, __, options, turned):
        position = options["position_ids"][..., None]
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(turned[0].shape, generator=generator)
        return tuple(torch.where(position >= 128, noise, part) for part in turned)

    model.model.rotary_emb.register_forward_hook(scramble, with_kwargs=True)
    blind = named(pool, "blind", model, sound.tokenizer)
    joined = [" ".join((prompts * 2)[place : place + 7]) for place in range(40)]
    long = [sound.tokenizer.decode(sound.text.encode(text)[:106]) for text in joined]
    found, made = findings(long, blind.name, max_new_tokens=64)
    assert found["context"].numbers["at"] == 128
    cliffs = {(each.kind, each.value) for each in made.summary.slices if each.cliff}
    assert ("context", "128-191") in cliffs
    assert findings(long, "fable-draft", max_new_tokens=64)[0] == {}


@pytest.mark.parametrize("width", [16, 63, 64, 100])
def test_only_rows_that_hold_a_group_tell_how_weights_were_rounded(width):
    """Fewer numbers side by side have few values, however exact each is."""
    exact = torch.nn.Linear(width, 512)
    assert coarse_words(exact) == ("", 0)
    rounded = torch.nn.Linear(width, 512)
    rounded.weight.data = torch.arange(512.0 * width).reshape(512, width) % 20
    assert coarse_words(rounded)[1] == (0 if width < GROUP else 5)
