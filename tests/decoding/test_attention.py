"""Attention in another shape is attention: beside the definition, written out head by head and row by row."""

import math
from itertools import product

import pytest
import torch

from specviz.decoding.forward.attention import attend, for_shared_keys

NUM_KEYS, END, WIDTH = 2, 7, 8


def defined(queries, keys, values, sees):
    """Text by text, head by head and row by row, in float64. sees [n, END]."""
    mixed = torch.zeros(queries.shape, dtype=torch.float64)
    for text, head, row in product(*map(range, queries.shape[:3])):
        of_keys = text, head // (queries.shape[1] // NUM_KEYS)
        scores = keys[of_keys].double() @ queries[text, head, row].double() / math.sqrt(WIDTH)
        mixed[text, head, row] = scores.masked_fill(~sees[row], -torch.inf).softmax(0) @ values[of_keys].double()
    return mixed


@pytest.mark.parametrize("num_texts", [1, 3])
@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("kind", ["one row", "from the first row", "numbers", "booleans", "one row behind a mask"])
def test_heads_that_share_keys_see_what_they_would_alone(num_heads, kind, num_texts):
    num_rows = {"one row": 1, "one row behind a mask": 1, "from the first row": END}.get(kind, 3)
    shapes = [(num_texts, num_heads, num_rows, WIDTH), *[(num_texts, NUM_KEYS, END, WIDTH)] * 2]
    queries, keys, values = map(torch.randn, shapes)
    sees = torch.ones(num_rows, END, dtype=torch.bool).tril(END - num_rows)
    mask = None
    if kind not in ("one row", "from the first row"):
        sees[:, 2] = False
        mask = sees if kind == "booleans" else torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
        mask = for_shared_keys(mask, num_heads, NUM_KEYS)
    torch.testing.assert_close(attend(queries, keys, values, mask), defined(queries, keys, values, sees).float())
