"""Tiny GGUF files, as llama.cpp's converter would write them: quantised, of one more family, broken on purpose."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specviz.bench import libllama

Q8_0 = gguf.GGMLQuantizationType.Q8_0
CONTROL, NORMAL = 3, 1


class _Converter(gguf.GGUFWriter):
    """Writes matrices in the format `form`, and vectors with something added."""

    form, plus = Q8_0, 0

    def add_tensor(self, name: str, tensor: np.ndarray, **more) -> None:
        if tensor.ndim == 1:
            super().add_tensor(name, tensor + self.plus, **more)
        else:
            super().add_tensor(name, gguf.quantize(tensor, self.form), raw_dtype=self.form)


def write_gguf(
    place: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    arch: str | None = None,
    form: gguf.GGMLQuantizationType = Q8_0,
    split_count: int | None = None,
    rope_scaling: float | None = None,
    **more: np.ndarray,
) -> Path:
    """The model with its matrices in the format `form`. arch: the architecture that the file names; split_count: of how
    many parts it says that it is one; rope_scaling: the factor by which it stretches its positions; more: tensors that
    it adds."""
    family = model.config.model_type
    writer = _Converter(str(place), arch or family)
    writer.form = form
    if family == "gemma2":
        writer.add_sliding_window(model.config.sliding_window)
        writer.plus = 1
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_token_types([CONTROL if token in tokenizer.all_special_tokens else NORMAL for token in tokens])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
    if split_count is not None:
        writer.add_uint16("split.count", split_count)
    if rope_scaling is not None:
        writer.add_rope_scaling_factor(rope_scaling)
    for name, values in more.items():
        gguf.GGUFWriter.add_tensor(writer, name.replace("__", "."), values)
    libllama.write_gguf(writer, model, tokenizer)
    return place
