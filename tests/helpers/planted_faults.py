"""Faults that are planted in a copy of fable-draft; run as a program: what the lab finds and what its cures gain."""

import copy
import json
import sys

import torch
from tokenizers import Tokenizer

from specviz.alignment.job import align
from specviz.drafters.heads import load_heads
from specviz.prompts import prompts_file
from specviz.session.workbench import workbench

NUM_TEXTS, NUM_TOKENS = 24, 64
MARKED = "{% for message in messages %}## {{ message['content'] }}\n\n{% endfor %}"
UNMARKED = MARKED.replace("## ", "")


def hotter(model, generator):
    model.lm_head.register_forward_hook(lambda _, __, logits: 1.7 * logits)


def rotated(model, generator):
    """Its configuration names another rope_theta than the one that the weights were trained with."""
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 500_000.0}
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)


def rounded(model, generator):
    for weight in (each for each in model.model.layers.parameters() if each.ndim == 2):
        step = weight.data.abs().amax(1, keepdim=True) / 3
        weight.data = (weight.data / step).round().clamp(-4, 3) * step


def permuted(model, generator):
    rows = torch.randperm(4096, generator=generator)[:400]
    table = model.model.embed_tokens.weight.data
    table[rows] = table[rows[torch.randperm(400, generator=generator)]]


def noised(model, generator, spreads=1.0):
    for weight in model.model.layers[1].parameters():
        weight.data += spreads * weight.data.std() * torch.randn(weight.shape, generator=generator)


def less_noised(model, generator):
    noised(model, generator, 0.75)


def half_noised(model, generator):
    noised(model, generator, 0.5)


def swapped(model, generator):
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]


def untold(model, generator):
    """It was never trained on the mark that begins a message in the target's template."""
    _put_off_by("##", model, generator)


def unsplit(model, generator):
    """Its tokenizer splits the mark in two, so it was never trained on the mark as one token."""
    _put_off_by("##", model, generator)


def without_merge(tokenizer, mark):
    """The same ids, but for the mark its parts come out."""
    held = json.loads(tokenizer.backend_tokenizer.to_str())
    held["model"]["merges"] = [pair for pair in held["model"]["merges"] if "".join(pair) != mark]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(held))


def unstarted(model, generator):
    """It was never trained on the start token that every prompt has here."""
    _put_off_by("<|endoftext|>", model, generator)


def _put_off_by(mark, model, generator):
    """Behind the token, what the model reads is drowned in noise."""
    token = workbench().pool.load("fable-target").text.encode(mark, special=False)[0]
    noise = torch.randn(1024, 1, generator=generator) * torch.randn(1, 192, generator=generator)

    def drown(_, ids, embedded):
        behind = (ids[0] == token).cumsum(1) > 0
        return embedded + behind[..., None] * embedded.std() * noise[: embedded.shape[1]]

    model.get_input_embeddings().register_forward_hook(drown)


def shifted(head):
    """EAGLE heads that are given the states of another position."""
    fuse = type(head).fuse
    head.fuse = lambda states: fuse(head, states).roll(1, 0)


PLANTED = {
    hotter: "temperature", rotated: "rope", rounded: "bits", permuted: "token ids", noised: "layer",
    less_noised: "layer", half_noised: "layer", swapped: "order", untold: "template", unsplit: "tokenizer",
    unstarted: "start", shifted: "feature",
}  # fmt: skip


def findings_with(plant):
    """What the lab finds in a draft with this fault, the first cause first."""
    pool = workbench().pool
    target = pool.load("fable-target")
    kinds = [each["text"] for kind in prompts_file()["kinds"] for each in kind["prompts"]]
    rows = [f"{text}{' ' * (place // len(kinds))}" for place, text in enumerate((kinds * 3)[:NUM_TEXTS])]
    options = {"max_new_tokens": NUM_TOKENS, "costs": {}}
    if plant is shifted:
        head = load_heads(pool, "fable-eagle", "eagle", target).module
        shifted(head)
        try:
            return align(rows, target=target.name, draft="fable-eagle", **options).summary.drafts[0].findings
        finally:
            del head.fuse
    sound = pool.load("fable-draft")
    model, tokenizers = copy.deepcopy(sound.model), [copy.deepcopy(sound.tokenizer) for _ in range(2)]
    plant(model, torch.Generator().manual_seed(0))
    model.name_or_path = plant.__name__
    reads = target.name
    if plant is untold:
        rows = [{"messages": [{"role": "user", "content": text}], "id": place} for place, text in enumerate(rows)]
        tokenizers[0].chat_template, tokenizers[1].chat_template = MARKED, UNMARKED
        reads = (copy.deepcopy(target.model), tokenizers[0])
        reads[0].name_or_path = "marked-target"
    if plant is unsplit:
        rows = [f"## {text}" for text in rows]
        without_merge(tokenizers[1], "##")
    if plant is unstarted:
        start = target.tokenizer.bos_token_id
        ids = [target.text.encode(text, special=False) for text in rows]
        rows = [
            {"prompt": [start, *own, *own * (place % 2)]} for place, own in enumerate(ids)
        ]  # long, every second one
    made = align(rows, target=reads, draft=(model, tokenizers[1]), **options)
    return made.summary.drafts[0].findings


def main(names):
    print("| planted | causes | gain claimed | gain when applied |\n|---|---|---|---|")
    for plant in (plant for plant in PLANTED if not names or plant.__name__ in names):
        found = findings_with(plant)
        gains = [
            f"{100 * found[0].numbers[name]:.1f}" if found and name in found[0].numbers else "-"
            for name in ("claimed", "applied")
        ]
        kinds = ", ".join(each.kind for each in found)
        print(f"| {plant.__name__} | {kinds or 'none'} | {' | '.join(gains)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
