"""Costs made up for tests."""

from specviz.analysis.costs import BatchCost, Costs


def made_costs(draft, target="big", draft_ms=1.0):
    return Costs(
        target=target,
        draft=draft,
        context_length=128,
        device="cpu",
        threads=1,
        dtype="float32",
        draft_ms=draft_ms,
        verify_ms=tuple(10.0 + n for n in range(33)),
        overhead_ms=0.5,
        plain_overhead_ms=0.25,
        batch=(BatchCost(1, 1, 10.0),),
        weight_bytes=10,
        bandwidth_gb_s=1.0,
        bandwidth_bytes=10,
        spread=0.0,
    )
