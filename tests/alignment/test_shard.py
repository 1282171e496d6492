"""A shard's texts and numbers, against plain forwards and slow sums; rows that cannot be used; memory that runs out."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from specviz.alignment import shard as shards
from specviz.alignment.token_stats import measure_texts
from specviz.alignment.types import BINS, Message, PromptRow, Shard
from specviz.decoding.draws import seed_of
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds
from specviz.request import Request
from tests.helpers.tiny_models import tiny, tiny_tokenizer

CALLER = (
    "{{ tools | tojson if tools else tools }}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if brief %}(brief){% endif %}{% endif %}"
)
SAMPLINGS = [Sampling(), Sampling(0.6, 12, 0.95, 0.05), Sampling(0.0)]
TEXTS = (
    TextIds([5, 9, 12], [7, 3, 22, 41, 8, 30]),
    TextIds([5, 9, 12, 40, 6], [7, 3]),
    TextIds([1], [60, 61, 20, 20, 20]),
)


def loaded(seed, vocab_size=320, **config):
    return ModelPool().load((tiny("llama", vocab_size=vocab_size, seed=seed, **config), tiny_tokenizer()))


@pytest.fixture(scope="module")
def pool():
    made = ModelPool()
    for name, seed, chat, config in (
        ("large", 1, False, {}), ("small", 2, False, {}), ("talker", 1, True, {}), ("caller", 1, CALLER, {}),
        ("brief", 3, False, {"max_position_embeddings": 20}), ("narrow", 4, False, {"vocab_size": 200}),
    ):  # fmt: skip
        model = tiny("llama", **{"vocab_size": 320, "seed": seed} | config)
        model.name_or_path = name
        tokenizer = tiny_tokenizer(chat=bool(chat))
        tokenizer.chat_template = chat if isinstance(chat, str) else tokenizer.chat_template
        made.load((model, tokenizer))
    return made


@torch.inference_mode()
def distribution(model, tokens, sampling, width=320):
    """The probabilities of the next token, by hand: (list, favourite)."""
    logits = model.model(torch.tensor([tokens])).logits[0, -1].double().tolist()
    logits += [-math.inf] * (width - len(logits))
    order = sorted(range(width), key=lambda token: -logits[token])
    if sampling.temperature == 0:
        return [float(token == order[0]) for token in range(width)], order
    weights = [math.exp((value - max(logits)) / sampling.temperature) for value in logits]
    allowed = order[: sampling.top_k or width]
    total, kept, mass = sum(weights[token] for token in allowed), [], 0.0
    for token in allowed:
        if mass >= sampling.top_p:
            break
        kept.append(token)
        mass += weights[token] / total
    kept = [token for token in kept if weights[token] >= sampling.min_p * weights[order[0]]]
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(width)], order


def entropy(row):
    return -sum(value * math.log(value) for value in row if value)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "cut", "T=0"])
def test_every_number_is_that_of_plain_forwards_and_slow_sums(sampling):
    target, draft = loaded(1), loaded(2)
    for text, (ours, theirs) in zip(TEXTS, measure_texts(target, [draft], TEXTS, sampling), strict=True):
        confidence = np.zeros((BINS, 3))
        for place, token in enumerate(text.ids):
            before = [*text.prompt, *text.ids[:place]]
            (p, p_order), (q, q_order) = distribution(target, before, sampling), distribution(draft, before, sampling)
            expected = {
                "p": p[token],
                "p_entropy": entropy(p),
                "most_likely": p_order[0],
                "most_likely_p": p[p_order[0]],
            }
            for name, value in expected.items():
                assert ours[name][place] == pytest.approx(value, abs=2e-5), name
            expected = {
                "q": q[token],
                "overlap": sum(map(min, p, q)),
                "q_entropy": entropy(q),
                "draft_most_likely": q_order[0],
                "draft_most_likely_q": q[q_order[0]],
                "draft_most_likely_p": p[q_order[0]],
                "target_most_likely_q": q[p_order[0]],
                "rank_in_draft": 1 + q_order.index(p_order[0]),
                "rank_in_target": 1 + p_order.index(q_order[0]),
                "outside": 0.0,
                "readable": True,
            }
            for name, value in expected.items():
                assert theirs[name][place] == pytest.approx(value, abs=1e-4), name
            for mine, other in zip(q, p, strict=True):
                confidence[min(BINS - 1, int(mine * BINS))] += mine, mine * mine, min(mine, other)
        np.testing.assert_allclose(theirs["confidence"], confidence, atol=1e-4)


def test_what_lies_outside_the_drafts_vocabulary_is_the_targets_mass_there():
    target, draft = loaded(1), loaded(2, vocab_size=200)
    ((_, found),) = measure_texts(target, [draft], TEXTS[:1], Sampling())
    for place in range(len(TEXTS[0].ids)):
        p, _ = distribution(target, [*TEXTS[0].prompt, *TEXTS[0].ids[:place]], Sampling())
        assert found["outside"][place] == pytest.approx(sum(p[200:]), abs=1e-5)


def test_where_a_draft_cannot_read_it_says_nothing():
    target, draft = loaded(1), loaded(2, max_position_embeddings=5)
    (_, found), *_ = measure_texts(target, [draft], TEXTS, Sampling())
    assert found["readable"].tolist() == [True] * 3 + [False] * 3
    for name in ("q", "overlap", "q_entropy"):
        assert (found[name][3:] == 0).all()
        assert (found[name][:3] > 0).all()
    assert found["confidence"].sum(0)[0] == pytest.approx(3.0, abs=1e-5)


# ---- rows -----------------------------------------------------------------------------------------------------------


def asking(*rows, target="large", drafts=("small",), **options):
    request = Request(**{"prompt": "any", "target": target, "max_new_tokens": 12, "seed": 5} | options)
    return Shard(request, drafts, rows, {})


def row(number, prompt=None, **values):
    return PromptRow(number, number + 1, f"id {number}", prompt=prompt, **values)


def by_prompt(found, *names):
    columns = [list(found.prompts[name]) for name in ("prompt", *names)]
    return {number: values for number, *values in zip(*columns, strict=True)}


def test_texts_are_drawn_each_from_its_own_seed(pool):
    together = shards.analyse(asking(row(0, "Once upon"), row(7, "The fox"), row(8, "The fox")), pool)
    alone = shards.analyse(asking(row(7, "The fox")), pool)
    texts = {
        number: [token for prompt, token in zip(made["prompt"], made["token"], strict=True) if prompt == number]
        for made in (alone.tokens, together.tokens)
        for number in (7, 8)
    }
    target = pool.load("large")
    (drawn,) = shards.sample(target, [target.text.encode("The fox")], [seed_of(5, 7)], Sampling(), 12)
    assert texts[7] == list(drawn.ids) != texts[8]
    assert by_prompt(together, "source", "exact")[7] == ["sampled", True]


def test_a_prompt_of_ids_is_read_as_it_is(pool):
    target = pool.load("large")
    ids = tuple(target.text.encode("The fox"))
    by_text, by_ids = (shards.analyse(asking(row(0, prompt)), pool) for prompt in ("The fox", ids))
    assert list(by_ids.tokens["token"]) == list(by_text.tokens["token"])
    assert by_prompt(by_ids, "prompt_text") == {0: ["The fox"]}
    (refused,) = shards.analyse(asking(row(0, (target.info.vocab_size,)), row(1, "The fox")), pool).refused
    assert refused.reason == f"the prompt has ids that large does not know (got {target.info.vocab_size})"


def test_a_given_completion_is_exact_only_if_it_is_said_to_be_this_targets(pool):
    told = {"target": "large", "temperature": 1.0}
    ids = (5, 9, 12, 7)
    found = shards.analyse(
        asking(
            row(0, "Once", completion=ids, told=told),
            row(1, "Once", completion=ids),
            row(2, "Once", completion="upon a time", told=told),
            row(3, "Once", completion=ids, told=told | {"temperature": 0.5}),
            row(4, "Once", completion=ids, told=told | {"top_k": 0, "top_p": 1.0}),
            row(5, "Once", completion=ids, told=told | {"min_p": 0.0}),
            row(6, "Once", completion=ids, told=told | {"min_p": 0.1}),
        ),
        pool,
    )
    assert by_prompt(found, "source", "exact", "finish") == {
        number: ["given", number in (0, 4, 5), "given"] for number in range(7)
    }
    assert [t for n, t in zip(found.tokens["prompt"], found.tokens["token"], strict=True) if n == 1] == list(ids)


def test_rows_that_cannot_be_used_come_back_with_the_reason(pool):
    found = shards.analyse(
        asking(
            row(0, "x " * 400),
            row(1, "Once"),
            row(2, "Once", completion=(5, 320)),
            row(3, "Once", completion=(5,)),
            row(4, "Once", completion=(5,) * 256),
        ),
        pool,
    )
    assert list(found.prompts["prompt"]) == [1]
    reasons = {each.line: each.reason for each in found.refused}
    assert set(reasons) == {1, 3, 4, 5}
    expected = {1: "reads at most 256", 3: "does not know (got 320)", 4: "at least 2 tokens", 5: "256 after it"}
    for line, words in expected.items():
        assert words in reasons[line]


def test_chats_take_the_targets_form_or_plain_lines_with_a_warning(pool):
    talk = (Message("user", "Hello fox"),)
    formed = shards.analyse(asking(row(0, messages=talk), row(1, "Hello fox"), target="talker", chat=True), pool)
    expected = "<|user|>Hello fox\n<|assistant|>"
    assert by_prompt(formed, "prompt_text") == {0: [expected], 1: [expected]}
    assert formed.warnings == ()
    lines = shards.analyse(asking(row(0, messages=talk)), pool)
    assert by_prompt(lines, "prompt_text") == {0: ["User: Hello fox\nAssistant:"]}
    assert "no chat template" in lines.warnings[0]
    with pytest.raises(KeyError):
        by_prompt(shards.analyse(asking(row(0, "Hi"), chat=True), pool), "prompt_text")[0]


CALLING = Message("assistant", "", tool_calls=({"type": "function", "function": {"name": "add", "arguments": {}}},))
TOOL_TALK = (Message("user", "2+3?"), CALLING, Message("tool", "5"))


@pytest.mark.parametrize(
    ("told", "target", "chat", "needed"),
    [
        ({"messages": TOOL_TALK}, "caller", False, "tool calls, answers of tools, .* --chat"),
        ({"messages": TOOL_TALK}, "large", True, "tool calls, answers of tools, .* large"),
        ({"messages": TOOL_TALK}, "large", False, "tool calls, answers of tools, .* large"),
        ({"messages": TOOL_TALK[:1], "tools": ({"name": "add"},)}, "caller", False, "tools, .* --chat"),
        ({"messages": TOOL_TALK[:1], "answer": CALLING}, "caller", False, "tool calls, .* --chat"),
        ({"messages": TOOL_TALK}, "talker", True, "leaves out the tool calls"),
    ],
)
def test_what_only_a_chat_template_writes_is_refused_by_name_without_it(pool, told, target, chat, needed):
    found = shards.analyse(asking(row(0, **told), row(1, messages=TOOL_TALK[:1]), target=target, chat=chat), pool)
    assert [each.line for each in found.refused] == [1]
    assert re.search(needed, found.refused[0].reason)


def test_tools_switches_and_reasoning_go_through_the_targets_template(pool):
    rows = (
        row(0, messages=TOOL_TALK, tools=({"name": "add"},)),
        row(1, "2+3?", chat_options={"brief": True}),
        row(2, messages=TOOL_TALK[:1], completion="", answer=Message("assistant", "5", "Two and three make it.")),
    )
    found = by_prompt(shards.analyse(asking(*rows, target="caller", chat=True), pool), "prompt_text", "text")
    assert found[0][0] == '[{"name": "add"}]<user>2+3?<assistant>{"name": "add", "arguments": {}}<tool>5<assistant>'
    assert found[1][0] == "None<user>2+3?<assistant>(brief)"
    assert found[2] == ["None<user>2+3?<assistant>", "(Two and three make it.)5"]


def test_switches_that_no_template_reads_are_warned_of(pool):
    found = shards.analyse(asking(row(0, "Once", chat_options={"brief": True})), pool)
    assert found.warnings == (shards.OPTIONS_UNUSED,)


def test_a_draft_that_cannot_read_the_text_drafts_nothing_there(pool):
    found = shards.analyse(asking(row(0, "Once upon a time"), drafts=("brief", "narrow"), max_new_tokens=40), pool)
    readable = {
        name: [ok for draft, ok in zip(found.tokens["draft"], found.tokens["readable"], strict=True) if draft == name]
        for name in ("brief", "narrow")
    }
    before = len(pool.load("large").text.encode("Once upon a time"))
    assert sum(readable["brief"]) == 20 + 1 - before
    assert not all(readable["narrow"])
    keep = np.asarray(found.tokens["keep"])
    assert (keep[~np.asarray(found.tokens["readable"])] == 0).all()


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_where_memory_runs_out_the_batch_is_halved_and_nothing_is_done_twice():
    tried = []

    def work(items):
        tried.append(list(items))
        if len(items) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [item * 10 for item in items]

    assert shards.in_batches(work, range(7), 8) == [0, 10, 20, 30, 40, 50, 60]
    assert tried == [list(range(7)), [0, 1, 2, 3], [0, 1], [2, 3], [4, 5], [6]]


def test_a_single_text_that_is_too_much_is_an_error_in_words():
    def work(items):
        raise MemoryError

    with pytest.raises(SpecvizError, match="single text"):
        shards.in_batches(work, [1, 2], 2)


def test_other_errors_are_not_taken_for_lack_of_memory():
    with pytest.raises(ZeroDivisionError):
        shards.in_batches(lambda items: 1 / 0, [1], 4)


def test_one_long_text_leaves_the_others_together():
    texts = [TextIds([1] * size, [1]) for size in (10, 400, 9, 11, 5)]
    assert list(shards.group_by_length(texts, 8, 100)) == [[4, 2, 0, 3], [1]]
    assert list(shards.group_by_length(texts, 2, 100)) == [[4, 2], [0, 3], [1]]
    assert list(shards.group_by_length(texts, 8, 25)) == [[4, 2], [0, 3], [1]]


def test_the_chance_to_be_kept_is_that_of_the_what_if(pool):
    found = shards.analyse(asking(row(0, "Once upon")), pool).tokens
    q, p = (np.asarray(found[name], dtype=float) for name in ("q", "p"))
    np.testing.assert_allclose(found["keep"], [min(1.0, b / a) for a, b in zip(p, q, strict=True)], rtol=1e-5)


def test_the_size_of_the_batch_changes_no_text(pool):
    rows = [row(number, f"Once upon {number}") for number in range(5)]
    whole, small = (shards.analyse(replace(asking(*rows), batch=batch), pool) for batch in (8, 2))
    assert list(whole.tokens["token"]) == list(small.tokens["token"])
    np.testing.assert_allclose(whole.tokens["overlap"], small.tokens["overlap"], atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_says_the_same():
    pairs = [(loaded(seed), loaded(seed)) for seed in (1, 2)]
    for _, on_gpu in pairs:
        on_gpu.model.cuda()
    here, there = (measure_texts(models[0], [models[1]], TEXTS, Sampling()) for models in zip(*pairs, strict=True))
    for mine, theirs in zip(here, there, strict=True):
        for columns, other in zip(mine, theirs, strict=True):
            for name, values in columns.items():
                np.testing.assert_allclose(other[name], values, atol=1e-3, err_msg=name)


# ---- the chat template's switches -----------------------------------------------------------------------------------


def test_chat_options_are_read_by_the_template_of_every_row_in_the_chat_form(pool, monkeypatch):
    template = "{{ messages[0].content }}{% if thinking is false %} at once{% endif %}"
    monkeypatch.setattr(pool.load("large").tokenizer, "chat_template", template)
    said = row(1, messages=(Message("user", "The dog"),))
    found = shards.analyse(asking(row(0, "The fox"), said, chat=True, chat_options={"thinking": False}), pool)
    assert list(found.prompts["prompt_text"]) == ["The fox at once", "The dog at once"]
    assert found.warnings == ()


def test_rows_that_are_not_in_the_chat_form_are_said_to_have_no_options(pool, monkeypatch):
    monkeypatch.setattr(pool.load("large").tokenizer, "chat_template", "{{ messages }}{{ thinking }}")
    found = shards.analyse(asking(row(0, "The fox"), chat_options={"thinking": False}), pool)
    assert found.warnings == (shards.OPTIONS_UNUSED,)
