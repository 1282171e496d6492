"""The teacher-forced scorer: every row is that of one plain forward over the text's own beginning."""

from functools import cache

import pytest
import torch

from specviz.decoding.forward import transformers_forward as forward
from specviz.models import score as scorer
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds, read
from tests.helpers.tiny_models import CONTEXT_LIMIT, FAMILIES, tiny, tiny_tokenizer

TEXTS = (
    TextIds([5, 9, 12], [7, 3, 22, 41, 8, 30, 2, 17, 11, 4, 19]),
    TextIds([5, 9, 12, 40, 6, 33, 2, 2, 18], [7, 3]),
    TextIds([1], [60, 61, 20, 20, 20, 3, 9]),
)


@cache
def loaded(family, **config):
    model = tiny(family, vocab_size=320, **config)
    return ModelPool().load((model, tiny_tokenizer()))


@torch.inference_mode()
def plain_row(model, tokens):
    return model.model(torch.tensor([tokens])).logits[0, -1]


def whole(text):
    return [*text.prompt, *text.ids]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("num_rows", "at_once"), [(1000, 1000), (2, 9)], ids=["all rows at once", "in pieces, a few tokens at once"]
)
def test_every_row_is_that_of_a_plain_forward(family, num_rows, at_once, monkeypatch):
    monkeypatch.setattr(scorer, "LOGITS_BYTES", num_rows * len(TEXTS) * 4 * 320)
    monkeypatch.setattr(forward, "FEWEST", at_once)
    monkeypatch.setattr(forward, "MOST", at_once)
    target, draft = loaded(family, seed=1), loaded("llama", seed=2)
    seen = []
    for rows in read(target, [draft], TEXTS):
        assert len(rows.token) <= num_rows * len(TEXTS)
        for row, (text, place) in enumerate(zip(rows.text.tolist(), rows.place.tolist(), strict=True)):
            before = [*TEXTS[text].prompt, *TEXTS[text].ids[:place]]
            torch.testing.assert_close(rows.target[row], plain_row(target, before), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(rows.drafts[0].logits[row], plain_row(draft, before), rtol=1e-4, atol=1e-4)
            assert rows.token[row] == TEXTS[text].ids[place]
            seen.append((text, place))
        assert all(own.readable.all() for own in rows.drafts)
    assert sorted(seen) == [(text, place) for text in range(3) for place in range(len(TEXTS[text].ids))]
    assert len(set(seen)) == len(seen)


def test_a_draft_says_nothing_behind_a_token_it_has_no_id_for():
    target, draft = loaded("llama", seed=1), ModelPool().load((tiny("llama", vocab_size=41), tiny_tokenizer()))
    (rows,) = read(target, [draft], TEXTS)
    known = {(int(t), int(i)) for t, i, ok in zip(rows.text, rows.place, rows.drafts[0].readable, strict=True) if ok}
    assert known == {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0)}  # 41 at place 3 and 60 at 0 end it
    row = rows.drafts[0].logits[rows.text.tolist().index(1)]
    assert torch.isinf(row[41:]).all()
    torch.testing.assert_close(row[:41], plain_row(draft, TEXTS[1].prompt), rtol=1e-4, atol=1e-4)


def test_a_draft_says_nothing_beyond_its_context():
    target = loaded("llama", seed=1)
    draft = ModelPool().load((tiny("llama", vocab_size=320, max_position_embeddings=6), tiny_tokenizer()))
    (rows,) = read(target, [draft], TEXTS)
    before = torch.tensor([len(text.prompt) for text in TEXTS])[rows.text] + rows.place
    assert rows.drafts[0].readable.tolist() == (before <= 6).tolist()
    at_limit = int(((before == 6) & (rows.text == 0)).nonzero())
    torch.testing.assert_close(
        rows.drafts[0].logits[at_limit], plain_row(draft, whole(TEXTS[0])[:6]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TextIds([], [1]), "needs a prompt and ids after it"),
        (TextIds([1], []), "needs a prompt and ids after it"),
        (TextIds([1] * CONTEXT_LIMIT, [1]), "reads at most 256 tokens"),
        (TextIds([1], [320]), "from 0 to 319"),
        (TextIds([-1], [3]), "from 0 to 319"),
    ],
)
def test_what_the_target_cannot_read_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        next(read(loaded("llama"), [], [text]))
