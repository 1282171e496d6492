"""Faults planted in sound drafts are found and named by the lab; the sound ones are left alone."""

import copy
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from specviz.alignment.ahead import load_draft
from specviz.alignment.causes import probes as faults
from specviz.alignment.causes.reading import Reading, Subject, on_module
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.search import TEMPERATURES, divide
from specviz.alignment.causes.undo import matrices, rounding, rows, settings
from specviz.alignment.causes.undo.rounding import GROUP, coarse_words
from specviz.alignment.job import align
from specviz.alignment.types import Message, PromptRow, Shard
from specviz.decoding.sampling import Sampling
from specviz.drafters.heads import load_heads
from specviz.models.catalog import resolve
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session.workbench import workbench
from tests.helpers.planted_faults import FAULTS, OF_DRAFTS, examine, planted, rounded, verdict

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
    assert [*found] == ["unlearned ids"]
    assert found["unlearned ids"].numbers["explained"] > 0.1


# ---- planted faults: each in a copy of a sound draft ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.target == "fable-target"])
def test_a_planted_fault_is_named_first_or_nothing_is(name, tmp_path):
    """Never is another fault named. `planted_faults`, run as a program, says how often the right one is."""
    fault = FAULTS[name]
    found = examine(ModelPool(allow_any=True), str(planted(fault, tmp_path)), fault.target)
    assert verdict(fault, found) != "wrong", found.findings


@pytest.mark.parametrize("name", ["gate and up in layer 1", "eagle: inputs of fc"])
def test_a_fault_is_named_with_the_points_that_it_explains_and_those_that_stay(name, tmp_path):
    fault = FAULTS[name]
    found = examine(ModelPool(allow_any=True), str(planted(fault, tmp_path)), fault.target)
    first = found.findings[0]
    assert verdict(fault, found) == "right"
    assert first.numbers["low"] > 0
    assert first.numbers["explained"] > 0.1
    assert f"It explains {100 * first.numbers['explained']:.1f} of the " in first.words
    assert "stay unexplained" in first.words


BEYOND_AN_UNDO = {"400 rows", "relu", "rounded to 3 bits", "hot, and gate and up", "norms -1 and k and v"}
"""Two faults at once, ids that are found token by token, numbers that are lost."""
WITH_AN_INVERSE = [
    fault for fault in OF_DRAFTS
    if fault.kinds and not {"tensors", "layer"} & {*fault.kinds} and fault.name not in BEYOND_AN_UNDO
]  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.slow] if fault.base == "fable-target" else [], id=fault.name)
        for fault in WITH_AN_INVERSE
    ],
)
def test_some_undo_gives_the_sound_drafts_probabilities_back(fault, pool, tmp_path):
    """The inverse of each planted fault is among the undos, whatever the search makes of that."""
    target = pool.load(fault.target)
    broken = from_folder(planted(fault, tmp_path))
    origin = resolve(fault.base)
    if "int4" in fault.name:  # weights that were rounded stay so
        origin = planted(replace(fault, name="rounded", plant=rounded(4)), tmp_path)
    ids = target.text.encode("Tom has a red ball. Mia has a red hat, and Tom has a cat. " * 3)
    wanted = probabilities(from_folder(origin), ids)
    assert distance(probabilities(broken, ids), wanted) > 0.03
    reading = Reading(broken, 0, [TextIds(ids[:9], ids[9:])])
    undone = (undo.apply(reading) for undo in undos_of(reading, target.model))
    assert min(distance(probabilities(each.module, ids, each.divided_by), wanted) for each in undone) < 0.015


def from_folder(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def probabilities(model, ids, divided_by=1.0):
    return (model(torch.tensor([ids])).logits[0] / divided_by).softmax(-1)


def distance(p, q):
    return 1 - float(torch.minimum(p, q).sum(-1).mean())


def undos_of(reading, target):
    """Every undo that needs no text of the target; rows are shifted as the planted faults have it."""
    module = reading.module
    families = [*matrices.families(module), *settings.families(module, target), *rounding.families(module)]
    families += rows.families(module, rows.DeafIds((), 0, 0.0, {}))
    for place in range(len(matrices.blocks_of(module))):
        families += matrices.families_of_layer(module, place)
    for begin, step in ((20, 1), (600, -1), (1500, 3), (100, 1)):
        for tables, _ in rows.tables_of(module):
            change = partial(rows.shift, begin=begin, step=step, tables=tables)
            families.append((on_module("token ids", "", change),))
    families += [[divide(divisor) for divisor in family] for family in TEMPERATURES]
    return [undo for family in families for undo in family]


# ---- faults of what a draft reads -----------------------------------------------------------------------------------


MARKED = "{% for message in messages %}## {{ message['content'] }}\n\n{% endfor %}"
UNMARKED = MARKED.replace("## ", "")


def without_merge(tokenizer, mark):
    """The same ids, but for the mark its parts come out."""
    held = json.loads(tokenizer.backend_tokenizer.to_str())
    held["model"]["merges"] = [pair for pair in held["model"]["merges"] if "".join(pair) != mark]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(held))


def deaf_behind(pool, mark, tokenizer=None):
    """A copy of fable-draft that was never trained on a token: behind it, what the model reads is drowned in noise."""
    sound = pool.load("fable-draft")
    model = copy.deepcopy(sound.model)
    token = pool.load("fable-target").text.encode(mark, special=False)[0]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1024, 1, generator=generator) * torch.randn(1, 192, generator=generator)

    def drown(_, ids, embedded):
        behind = (ids[0] == token).cumsum(1) > 0
        return embedded + behind[..., None] * embedded.std() * noise[: embedded.shape[1]]

    model.get_input_embeddings().register_forward_hook(drown)
    return model, tokenizer or copy.deepcopy(sound.tokenizer)


def first_finding(rows, draft, target="fable-target", **options):
    made = align(rows[:24], target=target, draft=draft, max_new_tokens=64, costs={}, **options)
    return made.summary.drafts[0].findings[0]


@pytest.mark.slow
def test_another_chat_format_is_named_with_its_difference(pool, prompts):
    target = pool.load("fable-target")
    asked, answers = copy.deepcopy(target.tokenizer), copy.deepcopy(target.tokenizer)
    asked.chat_template, answers.chat_template = MARKED, UNMARKED
    rows = [{"messages": [{"role": "user", "content": text}], "id": n} for n, text in enumerate(prompts)]
    model = copy.deepcopy(target.model)
    model.name_or_path = "marked-target"
    found = first_finding(rows, deaf_behind(pool, "##", answers), target=(model, asked))
    assert found.kind == "template"
    assert "the draft's with" in found.words


@pytest.mark.slow
def test_a_tokenizer_that_splits_otherwise_is_named_with_an_example(pool, prompts):
    model, tokenizer = deaf_behind(pool, "##")
    without_merge(tokenizer, "##")
    found = first_finding([f"## {text}" for text in prompts], (model, tokenizer))
    assert found.kind == "tokenizer"
    assert "where the target has ##, " in found.words


@pytest.mark.slow
def test_a_start_token_that_a_draft_was_never_trained_on_is_named(pool, prompts):
    target = pool.load("fable-target")
    start = target.tokenizer.bos_token_id
    ids = [target.text.encode(text, special=False) for text in prompts]
    rows = [{"prompt": [start, *own, *own * (place % 2)]} for place, own in enumerate(ids)]  # long, every second one
    found = first_finding(rows, deaf_behind(pool, "<|endoftext|>"))
    assert found.kind == "start"
    assert "with the start token <|endoftext|> (id 0) left out" in found.words


@pytest.mark.slow
def test_states_of_another_token_are_named(pool, prompts):
    """An EAGLE head that is given the states of another position."""
    head = load_heads(pool, "fable-eagle", "eagle", pool.load("fable-target")).module
    fuse = type(head).fuse
    head.fuse = lambda states: fuse(head, states).roll(1, 0)
    try:
        found = first_finding(prompts, "fable-eagle")
    finally:
        del head.fuse
    assert found.kind == "feature"
    assert "the states of the next token" in found.words


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["fable-medusa", "fable-eagle"], "fable-medusa"))
def test_sound_heads_have_no_cause(prompts, name):
    found, _ = findings(prompts[:24], name)
    assert not found.keys() & faults.KINDS.keys()


def test_heads_that_are_tried_together_agree_as_each_does_alone(pool):
    target = pool.load("fable-target")
    subject = Subject(load_draft("fable-medusa", pool, target), target)
    ids = target.text.encode("Tom has a red ball. Mia has a red hat, and Tom has a cat.")
    sample = TargetTexts(target, [TextIds(ids[:4], ids[4:]), TextIds(ids[:9], ids[9:14])], Sampling())
    plain = Reading(subject.module, 0, sample.texts)
    trials = [plain, replace(plain, divided_by=3.0)]
    together, alone = subject.agreements(trials, sample), [subject.agreements([each], sample)[0] for each in trials]
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
    (warning,) = [each for each in made.summary.warnings if each.startswith(f"{draft.name}: ")]
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
def test_a_cut_vocabulary_bounds_the_agreement_and_is_named_where_that_costs_enough(pool, prompts):
    sound = pool.load("fable-draft")
    model = copy.deepcopy(sound.model)
    model.resize_token_embeddings(2048)
    cut = named(pool, "cut", model, sound.tokenizer)
    found, made = findings(prompts, cut.name)
    (own,) = made.summary.drafts
    assert own.alpha <= own.ceiling < 0.999
    assert ("vocabulary" in found) == (1 - own.ceiling >= max(0.005, 0.1 * (1 - own.alpha)))
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
