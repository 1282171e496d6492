"""Runs llama.cpp beside specviz: the same pair written as GGUF, and a greedy speculative loop over libllama.

Weights, keys and values are float32; the number of threads is torch's. The calls of libllama come from
llama-cpp-python, which is not a dependency.
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
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

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

NAME = "llama.cpp"
FAMILIES = ("llama", "qwen2", "qwen3")


def write_gguf(
    writer: gguf.GGUFWriter, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Writes a model of FAMILIES with default positions to a file and closes it.

    The file holds the model's shape, its byte-pair tokenizer and its weights in float32.
    """
    _add_shape(writer, model.config)
    _add_tokenizer(writer, tokenizer, model.config.vocab_size)
    _add_weights(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)


def _add_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase, vocab_size: int
) -> None:
    """Adds a byte-pair tokenizer. An id that it lacks gets a name that no text gives."""
    names = []
    for token in range(vocab_size):
        names.append(tokenizer.convert_ids_to_tokens(token) or f"[unused {token}]")
    merges = []
    for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]:
        merges.append(" ".join(pair) if isinstance(pair, list) else pair)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_merges(merges)


def _add_weights(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    config = model.config
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    tensor_names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    num_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        projection = stem.rpartition(".")[2]
        weight = parameter.detach().float().cpu().numpy()
        if config.model_type == "llama" and projection in num_heads:
            weight = _interleave(weight, num_heads[projection])
        writer.add_tensor(f"{tensor_names.get_name(stem)}.{suffix}", np.ascontiguousarray(weight))


def _interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The rows in llama.cpp's order: two rows that rotate together lie side by side, not half a head apart."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


class LlamaReader:
    """A model of FAMILIES in libllama. room: the most tokens that it is given."""

    def __init__(self, loaded: LoadedModel, room: int) -> None:
        import llama_cpp

        config = loaded.model.config
        kind = config.model_type, getattr(config, "rope_parameters", {}).get("rope_type")
        if kind not in [(family, "default") for family in FAMILIES]:
            raise SpecvizError(
                f"only {', '.join(FAMILIES)} with default positions run in {NAME} here (got {kind})"
            )
        self._cpp = llama_cpp
        self._vocab_size = config.vocab_size
        self.text: Sequence[int] = []  # the tokens whose keys and values it holds
        num_threads = torch.get_num_threads()
        with TemporaryDirectory(prefix="specviz-gguf-") as folder:
            file = f"{folder}/model.gguf"
            write_gguf(gguf.GGUFWriter(file, config.model_type), loaded.model, loaded.tokenizer)
            self._llama = llama_cpp.Llama(
                file,
                use_mmap=False,
                verbose=False,
                n_ctx=room,
                n_batch=room,
                n_ubatch=room,
                n_threads=num_threads,
                n_threads_batch=num_threads,
                type_k=llama_cpp.GGML_TYPE_F32,
                type_v=llama_cpp.GGML_TYPE_F32,
            )

    def likeliest(self, text: Sequence[int], num_last: int) -> list[int]:
        """The most likely token behind each of the last tokens; the rows that it holds are read only once."""
        context = self._llama.ctx
        past = common_prefix(self.text, text, min(len(self.text), len(text) - num_last))
        self._cpp.llama_memory_seq_rm(self._cpp.llama_get_memory(context), 0, past, -1)
        num_ids = len(text) - past
        ids = (self._cpp.llama_token * num_ids)(*text[past:])
        batch = self._cpp.llama_batch_get_one(ids, num_ids)
        batch.logits = (ctypes.c_int8 * num_ids)(*[0] * (num_ids - num_last), *[1] * num_last)
        status = self._cpp.llama_decode(context, batch)
        if status:
            raise SpecvizError(
                f"{NAME} could not read {num_ids} tokens: llama_decode gave {status}"
            )
        self.text = text
        shape = (num_last, self._vocab_size)
        logits = np.ctypeslib.as_array(self._cpp.llama_get_logits(context), shape)
        return logits.argmax(-1).tolist()


def llama_contender(target: LoadedModel, draft: LoadedModel, k: int, room: int) -> Contender:
    """A contender that runs a greedy speculative loop over libllama at constant K."""
    if find_spec("llama_cpp") is None:
        raise SpecvizError(
            f"bench {NAME} needs llama-cpp-python, which is an extra: pip install llama-cpp-python"
        )
    large = LlamaReader(target, room)
    small = LlamaReader(draft, room)

    def generate(job: BenchTask) -> TimedGeneration:
        assert job.sampling.temperature == 0, "this loop draws nothing"
        text = list(job.prompt.ids)
        end = len(text) + job.num_tokens
        eos_ids = job.eos_ids(target)
        seen: list[tuple[float, int]] = []  # when each step ended, and the length of the text then
        started = time.perf_counter()
        large.text = []
        small.text = []
        while len(text) < end and not (seen and text[-1] in eos_ids):
            drafted: list[int] = []
            while len(drafted) < min(k, end - len(text) - 1):
                drafted += small.likeliest([*text, *drafted], 1)
            target_tokens = large.likeliest([*text, *drafted], len(drafted) + 1)
            num_accepted = common_prefix(drafted, target_tokens, len(drafted))
            for token in target_tokens[: num_accepted + 1]:
                text.append(token)
                if token in eos_ids:
                    break
            seen.append((time.perf_counter(), len(text)))
        return make_sample(NAME, job, text, seen, started)

    return generate


def compare(
    ours: str,
    target: LoadedModel,
    prompts: Sequence[BenchPrompt],
    samples: Sequence[TimedGeneration],
) -> Iterator[str]:
    """Yields lines: our speed beside llama.cpp's, where texts part, and how far apart the logits lie there."""
    yield f"\n{ours} / {NAME}: {compare_by_prompt(samples, ours, NAME)}"
    num_parted = 0
    for prompt in prompts:
        here = [sample for sample in samples if sample.prompt == prompt.name]
        texts = dict.fromkeys((sample.contender, sample.tokens) for sample in here)
        our_text = next(tokens for contender, tokens in texts if contender == ours)
        has_parted = False
        for contender, tokens in texts:
            place = common_prefix(our_text, tokens, len(our_text))
            if place == len(our_text):
                continue
            has_parted = True
            logits = target.cached_lm().forward([*prompt.ids, *our_text[:place]])[0]  # [V]
            both = logits[[our_text[place], tokens[place]]]
            gap = float(logits.max() - both.min())
            is_tie = gap <= tie_tolerance(target.info.dtype)
            kind = "a near-tie" if is_tie else "more than rounding"
            yield f"{prompt.name}: {contender} parts at token {place + 1}, where logits lie {gap:.2g} apart: {kind}"
        num_parted += has_parted
    num_equal = len(prompts) - num_parted
    yield f"all contenders write the same text on {num_equal} of {len(prompts)} prompts"
