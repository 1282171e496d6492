"""The page's forward gives the logits of transformers, with its kernel and without, whatever its cache holds."""

import base64
import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from specviz.settings import assets_dir
from tests.helpers.npm import npm_program
from tests.live.engine import TARGET, ask, folder_of, numbers

HERE = Path(__file__).resolve().parent

CLOSE = 1e-4  # logits
LENGTHS = (1, 2, 5, 31, 32, 33, 70)
LONG = (200, 600)
MOST_WANTED = 32  # logits of one pass
LIVE = assets_dir() / "web" / "live"
each_kernel = pytest.mark.parametrize("is_plain", [False, True], ids=["kernel", "plain"])


def random_ids(length, seed, num_ids=4_096):
    return random.Random(seed).choices(range(num_ids), k=length)


def reference(model, ids):
    """The logits behind each token: [N, V]."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.fixture(scope="module")
def target():
    return AutoModelForCausalLM.from_pretrained(folder_of(TARGET), dtype=torch.float32).eval()


def check(model, folder, asked, is_plain):
    """Every row of the answers is that of a pass over the whole text, and no token is read a second time."""
    answers = ask("logits", folder=str(folder), isPlain=is_plain, asked=asked)
    known, read = {}, []
    for (ids, wanted), answer in zip(asked, answers, strict=True):
        assert answer["isFast"] is not is_plain
        whole = known.setdefault(tuple(ids), reference(model, ids))
        rows = np.stack([numbers(row) for row in answer["rows"]])
        assert rows.shape == (wanted, model.config.vocab_size)
        np.testing.assert_allclose(rows, whole[-wanted:], rtol=0, atol=CLOSE)
        assert answer["fed"] == len(ids) - common(read, ids[: len(ids) - wanted])
        read = ids


def common(read, ids):
    """How many first tokens are the same."""
    return next(
        (at for at, pair in enumerate(zip(read, ids, strict=False)) if pair[0] != pair[1]), min(len(read), len(ids))
    )


@each_kernel
def test_the_logits_behind_a_text_are_those_of_transformers(target, is_plain):
    check(target, folder_of(TARGET), [(random_ids(length, seed=length), 1) for length in LENGTHS], is_plain)


@pytest.mark.parametrize("is_plain", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["kernel", "plain"])
def test_the_logits_behind_a_long_text_are_those_of_transformers(target, is_plain):
    check(target, folder_of(TARGET), [(random_ids(length, seed=length), 1) for length in LONG], is_plain)


@each_kernel
def test_the_logits_at_every_place_are_those_of_transformers(target, is_plain):
    asked = []
    for length in (5, 33, 70):
        ids = random_ids(length, seed=-length)
        asked += [(ids[:end], min(end, MOST_WANTED)) for end in {*range(MOST_WANTED, length, MOST_WANTED), length}]
    check(target, folder_of(TARGET), asked, is_plain)


def walk(seed, *, num_ids, most, steps=40):
    """Texts as a run asks for them and worse: each goes on, goes back, or branches off from the one before."""
    generator = random.Random(seed)
    text, asked = random_ids(most // 2, seed, num_ids), []
    for _ in range(steps):
        back = generator.choice((0, 0, 1, 3, 40, len(text) - 1))
        text = text[: max(1, len(text) - back)]
        text = text + generator.choices(range(num_ids), k=min(most - len(text), generator.choice((0, 1, 5, 13, 50))))
        asked.append((text, generator.randint(1, min(len(text), 13))))
    return asked


@each_kernel
def test_what_the_cache_has_read_before_changes_no_logits(target, is_plain):
    asked = walk(seed=1, num_ids=4_096, most=70, steps=14)
    assert any(len(later) < len(ids) for (ids, _), (later, _) in pairwise(asked))
    check(target, folder_of(TARGET), asked, is_plain)


def made_up(folder, dtype, **config):
    """A small Llama that no one has seen, saved in this number format, and read back in float32."""
    torch.manual_seed(3)
    shape = {"vocab_size": 52, "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 3, "head_dim": 8}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 90}
    values = {**shape, **heads, "tie_word_embeddings": False, "rope_theta": 500.0, "initializer_range": 0.3, **config}
    LlamaForCausalLM(LlamaConfig(**values)).to(dtype).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_heads_may_share_keys_and_the_last_matrix_may_be_its_own(tmp_path, dtype, is_plain):
    model = made_up(tmp_path, dtype)
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    check(model, tmp_path, [(random_ids(90, 1, 52)[:end], 1) for end in (1, 31, 33, 90)], is_plain)
    check(model, tmp_path, walk(seed=2, num_ids=52, most=90), is_plain)


@each_kernel
@pytest.mark.parametrize("shape", [(4, 4, 4), (4, 1, 16), (6, 3, 16)], ids=str)
def test_other_shapes_have_the_logits_of_transformers(tmp_path, shape, is_plain):
    num_heads, num_groups, head_dim = shape
    model = made_up(
        tmp_path, torch.float32, num_attention_heads=num_heads, num_key_value_heads=num_groups, head_dim=head_dim
    )
    check(model, tmp_path, walk(seed=4, num_ids=52, most=90), is_plain)


@pytest.mark.slow
@each_kernel
def test_a_long_walk_has_the_logits_of_transformers(target, is_plain):
    check(target, folder_of(TARGET), walk(seed=5, num_ids=4_096, most=700, steps=80), is_plain)


# ---- the product of a matrix with states -----------------------------------------------------------------------------


def test_both_kernels_give_the_product_for_odd_shapes(tmp_path):
    generator = np.random.default_rng(0)
    weights, states = (generator.standard_normal(40_000).astype(np.float32) for _ in range(2))
    sides = (4, 8, 12, 20, 64, 100)
    shapes = [(width, out) for width in sides for out in (1, 3, *sides)]
    cases = [
        {"tokens": tokens, "width": width, "out": out, "stride": stride}
        for width, out in shapes
        for tokens in (1, 2, 5, 31, 32)
        for stride in (None, width + 4, width + 100)
    ]
    for name, values in (("weights", weights), ("states", states)):
        (tmp_path / name).write_bytes(values.tobytes())
    answers = ask("products", cases=cases, weights=str(tmp_path / "weights"), states=str(tmp_path / "states"))
    for case, both in zip(cases, answers, strict=True):
        tokens, width, out = case["tokens"], case["width"], case["out"]
        stride = case["stride"] or width
        matrix = weights[: out * stride].reshape(out, stride)[:, :width].astype(np.float64)
        right = states[: tokens * width].reshape(tokens, width).astype(np.float64) @ matrix.T
        assert [each["isFast"] for each in both] == [True, False]
        for each in both:
            np.testing.assert_allclose(numbers(each["product"]).reshape(tokens, out), right, rtol=0, atol=2e-5)


def test_the_kernel_in_the_page_is_compiled_from_its_source(tmp_path):
    compiled = npm_program(HERE, "wabt", "wat2wasm")(str(LIVE / "kernel.wat"), "-o", str(tmp_path / "kernel.wasm"))
    assert compiled.returncode == 0, compiled.stderr
    (packed,) = re.findall("BINARY = '(.*)'", (LIVE / "kernel.js").read_text("utf-8"))
    made = base64.b64encode((tmp_path / "kernel.wasm").read_bytes()).decode()
    assert packed == made, f"kernel.js has to hold: {made}"
