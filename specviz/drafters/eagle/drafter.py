"""EagleDrafter: grows and prunes a token tree from an EAGLE head (arXiv:2401.15077, 2406.16858), or draws a chain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder, chain
from specviz.decoding.drafter import Ahead, Context, Drafter
from specviz.decoding.draws import DRAFT
from specviz.decoding.sampling import HEADS, fetch_tokens, refuse_nan
from specviz.decoding.work import Work
from specviz.drafters.eagle.heads import EagleHead
from specviz.drafters.markov import filled
from specviz.drafters.method import Parts
from specviz.drafters.params import TOP, Value


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes that were grown at one depth, M = F x W. All tensors lie on the device."""

    tokens: Tensor  # [M]
    parents: Tensor  # [M] node numbers
    scores: Tensor  # [M] log of the product of the head's probabilities along the path
    logits: Tensor  # [F, D] over the head's choices; the W children of each expanded node come from its row
    first: int  # the number of the first node; nodes are counted over all levels


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """The F nodes that are expanded at one depth."""

    features: Tensor  # [F, H]
    nodes: Tensor  # [F] node numbers
    scores: Tensor  # [F]
    see: (
        Tensor  # [F, rows] which of the head's rows a node sees: the text, its ancestors and itself
    )


class EagleDrafter(Drafter):
    """Makes a tree or a chain on the device and brings it to the host in one transfer.

    The head's cache keeps only the rows that read the target's features. Rows that read the head's own features are
    dropped after the step.
    """

    work = Work()

    def __init__(
        self, head: EagleHead, width: int, nodes: int, *, draws: bool = False, shift: int = 0
    ) -> None:
        """Takes the head and the tree's limits; `shift` is added to the drafted tokens' positions in `along`."""
        self._head = head
        self._width = min(width, head.num_choices)
        self._nodes = nodes
        self._draws = draws
        self._shift = shift
        self.hidden_layers = head.hidden_layers
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._rows = self._head.rows()
        self._num_read = 0

    @torch.inference_mode()
    def draft(self, context: Context, k: int) -> Draft:
        if k < 1 or context.states is None:
            return EMPTY
        if context.tokens is not self._text:
            self._reset(context.tokens)
        features = self._read(context.tokens, context.states, k)
        if self._draws:
            draft = self._chain(context, features, k)
        else:
            draft = self._prune(self._grow(features, len(context.states), k))
        if len(features) > 1:  # of all depths
            draft = replace(draft, evidence={**draft.evidence, **filled(None)})
        return draft

    def _read(self, tokens: Sequence[int], states: Tensor, k: int) -> Tensor:
        """Reads the new tokens and returns the feature [1, H] at the last one.

        A head that drafts all depths in one pass returns the features [k, H] of all depths. Row i reads state i and
        token i+1.
        """
        start = min(self._num_read, len(states) - 1)
        self._rows.count = start
        ids = to_device(tokens[start + 1 :], torch.long, states.device)  # [M]
        features = self._head.fuse(states[start:])  # [M, H]
        num_features = 1
        masked = self._head.ahead(k - 1)
        if masked is not None:
            features = torch.cat([features, masked[0]])
            ids = torch.cat([ids, masked[1]])
            num_features = k
        positions = torch.arange(start + 1, start + 1 + len(ids), device=states.device)
        features = self._forward(features, ids, positions, None)
        self._num_read = len(states)
        return features[-num_features:]

    def _forward(
        self, features: Tensor, ids: Tensor, positions: Tensor, see: Tensor | None
    ) -> Tensor:
        self.work += Work(1, len(ids))
        return self._head(features, ids, positions, self._rows, see)

    def _chain(self, context: Context, features: Tensor, k: int) -> Draft:
        """Draws K tokens, each from the head's distribution q at the token before it."""
        rows: list[Tensor] = []
        probs: list[Tensor] = []
        tokens: list[Tensor] = []
        feature = features[:1]
        for node in range(k):
            position = len(context.tokens) + node
            if node < len(features):
                feature = features[node : node + 1]
            else:
                place = torch.full((1,), position - 1, device=features.device)
                feature = self._forward(feature, tokens[-1][None], place, None)
            row = self._head.logits(feature)[0]  # [V]
            q = context.sampling.probs(row)
            rows.append(row)
            probs.append(q)
            tokens.append(context.draws.sample(q, DRAFT, position, node))
        sums = torch.stack([q.sum(dtype=exact_dtype(q.device)) for q in probs])
        ids, _ = fetch_tokens(torch.stack(tokens), sums, HEADS)
        return chain(ids, probs, rows)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        """The head's drafts at any place of a known text, for many starts at once: one pass per depth."""
        rows = self._head.rows()
        size = len(tokens) - 1
        positions = torch.arange(1, len(tokens), device=tokens.device)
        fused = self._head.fuse(states[:-1])
        features = self._head(fused, tokens[1:], positions, rows, None)  # row i: at token i+1

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            rows.count = size
            feature = features[starts - 2]  # [S, H]
            masked = self._head.ahead(len(starts))
            see = torch.arange(size, device=tokens.device) < (starts - 1)[:, None]  # [S, size]
            yield self._head.logits(feature), None
            for depth in range(1, depths):
                places = (starts + depth - 1).clamp_max(size)
                see = _see_itself(see)
                inputs, ids = (feature, tokens[places]) if masked is None else masked
                feature = self._head(inputs, ids, places + self._shift, rows, see)
                yield self._head.logits(feature), None

        return ahead

    def _grow(self, features: Tensor, last: int, k: int) -> list[Level]:
        """Grows the most likely children of every expanded node, and then expands the best of them."""
        device = features.device
        root = torch.full((1,), ROOT, device=device)
        see = torch.ones(1, self._rows.count, dtype=torch.bool, device=device)
        front = Front(features[:1], root, torch.zeros(1, dtype=torch.float32, device=device), see)
        levels = [self._children(front, 0)]
        for depth in range(1, k):
            scores, best = self._leading(levels)
            if not len(best):
                break
            known = features[depth : depth + 1]
            front = self._expand(front, levels[-1], scores, best, last + depth, known)
            levels.append(self._children(front, levels[-1].first + len(levels[-1].tokens)))
        return levels

    def _children(self, front: Front, first: int) -> Level:
        logits = self._head.choices(front.features)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        log_probs, chosen = wide.log_softmax(-1).topk(self._width)  # [F, W]
        # a child never scores above its parent
        scores = log_probs.clamp_max(0) + front.scores[:, None]
        tokens = self._head.ids(chosen.flatten())
        parents = front.nodes.repeat_interleave(self._width)
        return Level(tokens, parents, scores.flatten(), logits, first)

    def _leading(self, levels: list[Level]) -> tuple[Tensor, Tensor]:
        """The scores [F] and places [F] of the last level's best nodes, the best first.

        On a CPU they are only those below which a node can be among the best of all levels: no node scores above its
        parent. On other devices it would take long to wait for their number.
        """
        last = levels[-1].scores
        scores, best = last.topk(min(self._width, len(last)))
        grown = torch.cat([level.scores for level in levels])
        if grown.is_cpu and len(grown) >= self._nodes:
            can_lead = scores > grown.topk(self._nodes).values[-1]
            scores = scores[can_lead]
            best = best[can_lead]
        return scores, best

    def _expand(
        self,
        front: Front,
        level: Level,
        scores: Tensor,
        best: Tensor,
        position: int,
        known: Tensor,
    ) -> Front:
        """Makes the next front of the level's nodes at the places `best` [F], with their scores [F].

        known: [0 or 1, H], the feature of this depth if the head made it before, whatever the token is.
        """
        parents = best // self._width
        see = _see_itself(front.see[parents])
        if len(known):
            features = known.expand(len(best), -1)
        else:
            positions = torch.full_like(best, position)
            features = self._forward(front.features[parents], level.tokens[best], positions, see)
        return Front(features, level.first + best, scores, see)

    def _prune(self, levels: list[Level]) -> Draft:
        """Takes the best nodes of all levels, the best first. Among equals the earlier, so parents before children."""
        tokens = torch.cat([level.tokens for level in levels])
        parents = torch.cat([level.parents for level in levels])
        scores = torch.cat([level.scores for level in levels])
        best = scores.sort(descending=True, stable=True).indices[: self._nodes]
        columns = (best, tokens[best], parents[best], scores[best].exp())
        exact = exact_dtype(scores.device)
        rows = to_host(torch.stack([column.to(exact) for column in columns]))  # [4, nodes]
        chosen_scores = rows[3].tolist()
        refuse_nan(chosen_scores, HEADS)
        logits = torch.cat([level.logits for level in levels])[best // self._width]
        builder = DraftBuilder()
        places = {ROOT: ROOT}
        nodes = rows[:3].long().T.tolist()
        for row, (number, token, parent) in zip(self._head.spread(logits), nodes, strict=True):
            places[number] = builder.add(token, places[parent], logits=row)
        evidence = {
            "scores": [round(score, 4) for score in chosen_scores],
            "grown": len(scores),
            "kept": len(best),
            "levels": len(levels),
        }
        return builder.build(evidence=evidence)


def _see_itself(see: Tensor) -> Tensor:
    """Lets each of F new rows see itself: [F, rows] -> [F, rows + F]."""
    itself = torch.eye(len(see), dtype=torch.bool, device=see.device)
    return torch.cat([see, itself], dim=1)


def build(parts: Parts, params: Mapping[str, Value]) -> EagleDrafter:
    draws = params["children"] != TOP
    return EagleDrafter(parts.heads, params["width"], params["nodes"], draws=draws)
