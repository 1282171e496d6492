"""Faults that are planted in a copy of fable-draft; run as a program: what the lab finds and what its cures gain."""

import copy
import sys

import torch

from specviz.alignment.job import align
from specviz.prompts import prompts_file
from specviz.session.workbench import workbench


def hotter(model, generator):
    model.lm_head.register_forward_hook(lambda _, __, logits: 1.7 * logits)


def rounded(model, generator):
    for weight in (each for each in model.model.layers.parameters() if each.ndim == 2):
        step = weight.data.abs().amax(1, keepdim=True) / 3
        weight.data = (weight.data / step).round().clamp(-4, 3) * step


def permuted(model, generator):
    rows = torch.randperm(4096, generator=generator)[:400]
    table = model.model.embed_tokens.weight.data
    table[rows] = table[rows[torch.randperm(400, generator=generator)]]


def noised(model, generator):
    for weight in model.model.layers[1].parameters():
        weight.data += weight.data.std() * torch.randn(weight.shape, generator=generator)


def swapped(model, generator):
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]


PLANTED = {
    hotter: "temperature", rounded: "bits", permuted: "token ids", noised: "layer", swapped: "order",
}  # fmt: skip


def main(names):
    sound = workbench().library.load("fable-draft")
    texts = [each["text"] for kind in prompts_file()["kinds"] for each in kind["prompts"]]
    texts = [f"{text}{' ' * (number // len(texts))}" for number, text in enumerate((texts * 3)[:24])]
    print("| planted | first cause | gain claimed | gain when applied |\n|---|---|---|---|")
    for plant in (plant for plant in PLANTED if not names or plant.__name__ in names):
        model = copy.deepcopy(sound.model)
        plant(model, torch.Generator().manual_seed(0))
        model.name_or_path = plant.__name__
        made = align(texts, target="fable-target", draft=(model, sound.tokenizer), max_new_tokens=64, costs={})
        (first, *_) = [*made.summary.drafts[0].findings, None]
        gains = [
            f"{100 * first.numbers[name]:.1f}" if first and name in first.numbers else "-"
            for name in ("claimed", "applied")
        ]
        print(f"| {plant.__name__} | {first and first.kind} | {' | '.join(gains)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
