"""Files of hidden states in vLLM's layout, made by a model's own transformers forward: not by the code under test."""

import json

import torch
from safetensors.torch import save_file


def states_of(model, ids, layers):
    """The states [T, L, H] behind each token, before the final norm; layers rise, the number of all is the last one."""
    last = []
    (blocks,) = (part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == layers[-1])
    hook = blocks[-1].register_forward_hook(lambda *call: last.append(call[2]))  # [1, T, H]
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return torch.stack([*(states[layer][0] for layer in layers[:-1]), last[0][0]], dim=1)


def store(folder, model, texts, layers):
    """Writes the states of each text (ids) and returns the folder."""
    folder.mkdir()
    for number, ids in enumerate(texts):
        write(folder / f"request-{number}.safetensors", ids, states_of(model, ids, layers))
    return folder


def write(file, ids, states):
    save_file({"hidden_states": states.contiguous(), "token_ids": torch.tensor(ids)}, file)


def bare_folder(folder, model, tokenizer):
    """A checkpoint of many files, all but those of the embedding, the final norm and the output matrix removed."""
    model.save_pretrained(folder, max_shard_size="20KB")
    tokenizer.save_pretrained(folder)
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {file for name, file in names.items() if ".layers." not in name}
    for file in set(names.values()) - needed:
        (folder / file).unlink()
    assert len(needed) < len(set(names.values()))
    return folder
