"""Broken engines for the checks that enumerate."""

import torch

from specviz.rules.lossless import BlockVerification


class WritesP(BlockVerification):
    """WRONG: after the kept tokens it draws from p, whatever the draft owed."""

    def last_distribution(self, rows, num_accepted):
        return rows.after(num_accepted)[0]


class Forgets(BlockVerification):
    """WRONG: each weight forgets the ones before it."""

    def _weights(self, rows):
        weights = super()._weights(rows)
        return torch.cat([weights[:1], (rows.p / rows.q)[:, 0].double().clamp_max(1)])
