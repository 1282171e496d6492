"""EagleDrafter: grows and prunes a token tree from an EAGLE head (arXiv:2401.15077, 2406.16858), or draws a chain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder, chain
from specviz.decoding.drafter import Ahead, Context, Drafter, Work
from specviz.decoding.draws import DRAFT
from specviz.decoding.sampling import HEADS, fetch_tokens, refuse_nan
from specviz.drafters.eagle.heads import EagleHead
from specviz.drafters.eagle.layers import KeyValueRows
from specviz.drafters.method import Parts
from specviz.drafters.params import TOP, Value


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes grown at one depth, M = F x W, numbered over all levels from `first` on. All on the device."""

    tokens: Tensor  # [M]
    parents: Tensor  # [M]
    scores: Tensor  # [M] log of the product of the head's probabilities along the path
    logits: Tensor  # [F, D] over the head's choices: what the W children of each expanded node were chosen from
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """The F nodes that are expanded at one depth."""

    features: Tensor  # [F, H]
    nodes: Tensor  # [F] their numbers
    scores: Tensor  # [F]
    see: Tensor  # [F, rows] which of the head's rows each one sees: the text, what it hangs from and itself


class EagleDrafter(Drafter):
    """Tree or chain is made on the device and comes to the host in one transfer.

    The head's cache keeps the rows that read the target's features; rows that read its own features are dropped.
    """

    work = Work()

    def __init__(
        self, head: EagleHead, width: int, nodes: int, *, draws: bool = False, shift: int = 0
    ) -> None:
        """shift: added to the positions of drafted tokens along a text."""
        self._head, self._width, self._nodes = head, min(width, head.num_choices), nodes
        self._draws, self._shift, self.hidden_layers = draws, shift, head.hidden_layers
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text, self._rows, self._num_read = tokens, KeyValueRows(), 0

    @torch.inference_mode()
    def draft(self, context: Context, k: int) -> Draft:
        if k < 1 or context.states is None:
            return EMPTY
        if context.tokens is not self._text:
            self._reset(context.tokens)
        features = self._read(context.tokens, context.states, k)
        if self._draws:
            return self._chain(context, features, k)
        return self._prune(self._grow(features, len(context.states), k))

    def _read(self, tokens: Sequence[int], states: Tensor, k: int) -> Tensor:
        """Reads the new tokens: the feature [1, H] behind the last one, or those [k, H] of all depths where the head
        makes them at once. Row i reads state i and token i+1."""
        start = min(self._num_read, len(states) - 1)
        self._rows.count = start
        ids = to_device(tokens[start + 1 :], torch.long, states.device)
        features = self._head.fuse(states[start:])
        ahead = self._head.ahead(k - 1)
        if ahead is not None:
            features, ids = torch.cat([features, ahead[0]]), torch.cat([ids, ahead[1]])
        positions = torch.arange(start + 1, start + 1 + len(ids), device=states.device)
        features = self._forward(features, ids, positions, None)
        self._num_read = len(states)
        return features[-1 if ahead is None else -k :]

    def _forward(
        self, features: Tensor, ids: Tensor, positions: Tensor, see: Tensor | None
    ) -> Tensor:
        self.work += Work(1, len(ids))
        return self._head(features, ids, positions, self._rows, see)

    def _chain(self, context: Context, features: Tensor, k: int) -> Draft:
        """K tokens, each drawn from the head's law behind the one before, which is its q."""
        rows, probs, tokens = [], [], []
        feature = features[:1]
        for node in range(k):
            position = len(context.tokens) + node
            if node < len(features):
                feature = features[node : node + 1]
            else:
                place = torch.full((1,), position - 1, device=features.device)
                feature = self._forward(feature, tokens[-1][None], place, None)
            rows.append(self._head.logits(feature)[0])
            probs.append(context.sampling.probs(rows[-1]))
            tokens.append(context.draws.sample(probs[-1], DRAFT, position, node))
        sums = torch.stack([q.sum(dtype=exact_dtype(q.device)) for q in probs])
        return chain(fetch_tokens(torch.stack(tokens), sums, HEADS)[0], probs, rows)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        """The head's own rollout behind the true text, from many starts at once: one pass per depth."""
        rows, size = KeyValueRows(), len(tokens) - 1
        places = torch.arange(1, len(tokens), device=tokens.device)
        features = self._head(
            self._head.fuse(states[:-1]), tokens[1:], places, rows, None
        )  # row i: behind token i+1

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            rows.count, own, masked = size, features[starts - 2], self._head.ahead(len(starts))
            see = torch.arange(size, device=tokens.device) < (starts - 1)[:, None]
            yield self._head.logits(own), None
            for depth in range(1, depths):
                at = (starts + depth - 1).clamp_max(size)
                see = torch.cat(
                    [see, torch.eye(len(starts), dtype=torch.bool, device=tokens.device)], dim=1
                )
                read, ids = (own, tokens[at]) if masked is None else masked
                own = self._head(read, ids, at + self._shift, rows, see)
                yield self._head.logits(own), None

        return ahead

    def _grow(self, features: Tensor, last: int, k: int) -> list[Level]:
        """Per level the likeliest children of every expanded node; the best of all of them are expanded next."""
        device = features.device
        see = torch.ones(1, self._rows.count, dtype=torch.bool, device=device)
        front = Front(
            features[:1], torch.full((1,), ROOT, device=device), torch.zeros(1, device=device), see
        )
        levels = [self._children(front, 0)]
        for depth in range(1, k):
            front = self._expand(front, levels[-1], last + depth, features[depth : depth + 1])
            levels.append(self._children(front, levels[-1].first + len(levels[-1].tokens)))
        return levels

    def _children(self, front: Front, first: int) -> Level:
        rows = self._head.choices(front.features)
        wide = rows if rows.dtype == torch.float64 else rows.float()
        chances, chosen = wide.log_softmax(-1).topk(self._width)  # [F, W]
        scores = (
            chances.clamp_max(0) + front.scores[:, None]
        )  # a child never scores above its parent
        tokens = self._head.ids(chosen.flatten())
        return Level(
            tokens, front.nodes.repeat_interleave(self._width), scores.flatten(), rows, first
        )

    def _expand(self, front: Front, level: Level, position: int, known: Tensor) -> Front:
        """known [0 or 1, H]: the feature of this depth where the head has made it before, behind whatever token."""
        scores, best = level.scores.topk(min(self._width, len(level.scores)))
        parents = best // self._width
        see = torch.cat(
            [front.see[parents], torch.eye(len(best), dtype=torch.bool, device=best.device)], dim=1
        )
        if len(known):
            return Front(known.expand(len(best), -1), level.first + best, scores, see)
        features = self._forward(
            front.features[parents], level.tokens[best], torch.full_like(best, position), see
        )
        return Front(features, level.first + best, scores, see)

    def _prune(self, levels: list[Level]) -> Draft:
        """The best nodes of all levels, the best first; of equal ones the earlier: a parent before its children."""
        columns = zip(*((each.tokens, each.parents, each.scores) for each in levels), strict=True)
        tokens, parents, scores = map(torch.cat, columns)
        best = scores.sort(descending=True, stable=True).indices[: self._nodes]
        wide = exact_dtype(scores.device)
        rows = to_host(
            torch.stack(
                [row.to(wide) for row in (best, tokens[best], parents[best], scores[best].exp())]
            )
        )
        refuse_nan(rows[3].tolist(), HEADS)
        logits = self._head.spread(
            torch.cat([level.logits for level in levels])[best // self._width]
        )
        builder, places = DraftBuilder(), {ROOT: ROOT}
        for row, (number, token, parent) in zip(logits, rows[:3].long().T.tolist(), strict=True):
            places[number] = builder.add(token, places[parent], logits=row)
        rounded = [round(score, 4) for score in rows[3].tolist()]
        evidence = {
            "scores": rounded,
            "grown": len(scores),
            "kept": len(best),
            "levels": len(levels),
        }
        return builder.build(evidence=evidence)


def build(parts: Parts, params: Mapping[str, Value]) -> EagleDrafter:
    return EagleDrafter(
        parts.heads, params["width"], params["nodes"], draws=params["children"] != TOP
    )
