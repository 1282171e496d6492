"""llama.cpp beside specviz: the same pair written as GGUF, and a greedy speculative loop over libllama.

Weights, keys and values are float32, the threads are torch's. llama-cpp-python, no dependency, gives libllama's calls.
"""

import ctypes
import json
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.bench.contenders import (
    BenchPrompt,
    BenchTask,
    Contender,
    TimedGeneration,
    compare_by_prompt,
    make_sample,
)
from specviz.bench.race import tie_tolerance
from specviz.decoding.draft import common_prefix
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel

NAME, FAMILIES = "llama.cpp", ("llama", "qwen2", "qwen3")


def write_gguf(
    writer: gguf.GGUFWriter, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Adds the shape of a model of FAMILIES with default positions, its byte-pair tokenizer and its weights in float32,
    writes the file and closes it. Ids that the tokenizer lacks get names that no text gives."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for add in (writer.add_rope_dimension_count, writer.add_key_length, writer.add_value_length):
        add(head_dim)
    names = (tokenizer.convert_ids_to_tokens(token) for token in range(config.vocab_size))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([name or f"[unused {token}]" for token, name in enumerate(names)])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in merges])
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    places = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        weight, count = parameter.detach().float().cpu().numpy(), heads.get(stem.rpartition(".")[2])
        if (
            config.model_type == "llama" and count
        ):  # the two that turn together side by side, not half a head apart
            weight = (
                weight.reshape(count, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
            )
        writer.add_tensor(f"{places.get_name(stem)}.{suffix}", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaReader:
    """A model in libllama, of FAMILIES; text: whose rows it holds; room: the most tokens that it is given."""

    def __init__(self, loaded: LoadedModel, room: int) -> None:
        import llama_cpp

        config = loaded.model.config
        kind = config.model_type, getattr(config, "rope_parameters", {}).get("rope_type")
        if kind not in [(family, "default") for family in FAMILIES]:
            raise SpecvizError(
                f"only {', '.join(FAMILIES)} with default positions run in {NAME} here (got {kind})"
            )
        self._cpp, self._vocab_size, self.text = llama_cpp, config.vocab_size, []
        options = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), room)
        options |= dict.fromkeys(("n_threads", "n_threads_batch"), torch.get_num_threads())
        options |= dict.fromkeys(("type_k", "type_v"), llama_cpp.GGML_TYPE_F32)
        with TemporaryDirectory(prefix="specviz-gguf-") as place:
            file = f"{place}/model.gguf"
            write_gguf(gguf.GGUFWriter(file, config.model_type), loaded.model, loaded.tokenizer)
            self._llama = llama_cpp.Llama(file, use_mmap=False, verbose=False, **options)

    def likeliest(self, text: Sequence[int], num_last: int) -> list[int]:
        """What it would write behind each of the last tokens; rows that already spell the text are kept."""
        past = common_prefix(self.text, text, min(len(self.text), len(text) - num_last))
        self._cpp.llama_memory_seq_rm(self._cpp.llama_get_memory(self._llama.ctx), 0, past, -1)
        ids = (self._cpp.llama_token * (len(text) - past))(*text[past:])
        batch = self._cpp.llama_batch_get_one(ids, len(ids))
        batch.logits = (ctypes.c_int8 * len(ids))(*[0] * (len(ids) - num_last), *[1] * num_last)
        if status := self._cpp.llama_decode(self._llama.ctx, batch):
            raise SpecvizError(
                f"{NAME} could not read {len(ids)} tokens: llama_decode gave {status}"
            )
        self.text = text
        logits = np.ctypeslib.as_array(
            self._cpp.llama_get_logits(self._llama.ctx), (num_last, self._vocab_size)
        )
        return logits.argmax(-1).tolist()


def llama_contender(target: LoadedModel, draft: LoadedModel, k: int, room: int) -> Contender:
    """The greedy speculative loop over libllama at constant K."""
    if find_spec("llama_cpp") is None:
        raise SpecvizError(
            f"--against {NAME} needs llama-cpp-python, which is an extra: pip install llama-cpp-python"
        )
    large, small = LlamaReader(target, room), LlamaReader(draft, room)

    def generate(job: BenchTask) -> TimedGeneration:
        assert job.sampling.temperature == 0, "this loop draws nothing"
        text, end = list(job.prompt.ids), len(job.prompt.ids) + job.num_tokens
        seen: list[tuple[float, int]] = []  # when each step ended, and how many tokens there were
        started = time.perf_counter()
        large.text = small.text = []
        while len(text) < end:
            drafted: list[int] = []
            while len(drafted) < min(k, end - len(text) - 1):
                drafted += small.likeliest([*text, *drafted], 1)
            own = large.likeliest([*text, *drafted], len(drafted) + 1)
            text += own[: common_prefix(drafted, own, len(drafted)) + 1]
            seen.append((time.perf_counter(), len(text)))
        return make_sample(NAME, job, text, seen, started)

    return generate


def compare(
    ours: str,
    target: LoadedModel,
    prompts: Sequence[BenchPrompt],
    samples: Sequence[TimedGeneration],
) -> Iterator[str]:
    """Lines: how fast we are beside it, where texts part from ours, and how far apart the two logits lie there."""
    yield f"\n{ours} / {NAME}: {compare_by_prompt(samples, ours, NAME)}"
    parted = set()
    for prompt in prompts:
        texts = dict.fromkeys(
            (each.contender, each.tokens) for each in samples if each.prompt == prompt.name
        )
        own = next(tokens for contender, tokens in texts if contender == ours)
        for contender, tokens in texts:
            if (place := common_prefix(own, tokens, len(own))) < len(own):
                parted.add(prompt)
                logits = target.cached_lm().forward([*prompt.ids, *own[:place]])[0]
                gap = float(logits.max() - logits[[own[place], tokens[place]]].min())
                kind = (
                    "a near-tie"
                    if gap <= tie_tolerance(target.info.dtype)
                    else "more than rounding"
                )
                yield f"{prompt.name}: {contender} parts at token {place + 1}, where logits lie {gap:.2g} apart: {kind}"
    yield f"all contenders write the same text on {len(prompts) - len(parted)} of {len(prompts)} prompts"
