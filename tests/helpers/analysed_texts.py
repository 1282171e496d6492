"""Analysed texts from random numbers: rows of p and q that are real distributions, and nothing of any model."""

import numpy as np
from scipy.signal import lfilter
from scipy.special import ndtr

from specviz.alignment.aggregate import Facts
from specviz.alignment.job_folder import Job, Preparation
from specviz.alignment.tables.shard_tables import CLASSES, draft_chances
from specviz.alignment.tables.slices import CONTEXT_STARTS, DEPTH_STARTS, DraftSlice, PerPrompt, bucket_name
from specviz.alignment.types import BINS, GIVEN, AnalysedText, PromptRow, RowText, Shard
from specviz.analysis.whatif import lost_along_text, saved_along_text
from specviz.request import Request

VOCABULARY = 12
TARGET = "big"


def request(**changes):
    return Request(prompt="any", target=TARGET, **{"max_new_tokens": 40, **changes})


def facts(request, created="now", *, specviz="0.1", prompts="", findings=(), looked_for=(), **changes):
    job = Job(request, (), prompts, num_rows=0, shard_size=1, costs="none", specviz=specviz)
    return Facts(job, Preparation(findings, (), looked_for, created=created, costs={}), **changes)


def shard(rows, drafts=("one",), k=4, step_ms=None, **changes):
    return Shard(request(num_speculative_tokens=k, **changes), tuple(drafts), tuple(rows), step_ms or {})


def simplex(generator, size, concentration=0.3):
    return generator.dirichlet(np.full(VOCABULARY, concentration), size)


def confidence_of(p, q, readable):
    """Sums of q, q * q and min(p, q) by bins of q, one token at a time."""
    sums = np.zeros((BINS, 3))
    for place in np.flatnonzero(readable):
        for ours, theirs in zip(p[place], q[place], strict=True):
            sums[min(int(theirs * BINS), BINS - 1)] += theirs, theirs * theirs, min(ours, theirs)
    return sums


def draft_columns(p, q, ids, *, readable, k, num_ids=VOCABULARY):
    """num_ids: the draft's; what the target gives to ids from there on is outside."""
    q = np.where(np.arange(VOCABULARY) < num_ids, q, 0.0)
    q = q / q.sum(1, keepdims=True) * readable[:, None]
    places, mine, theirs = np.arange(len(ids)), q.argmax(1), p.argmax(1)
    keep = np.where(readable, np.minimum(1.0, q[places, ids] / p[places, ids]), 0.0)
    return {
        "q": q[places, ids],
        "overlap": np.minimum(p, q).sum(1),
        "keep": keep,
        "q_entropy": -(q * np.log(np.where(q > 0, q, 1))).sum(1),
        "draft_most_likely": mine,
        "draft_most_likely_text": labels_of(mine),
        "draft_most_likely_q": q.max(1),
        "draft_most_likely_p": p[places, mine],
        "target_most_likely_q": q[places, theirs],
        "rank_in_draft": 1 + (q > q[places, theirs][:, None]).sum(1),
        "rank_in_target": 1 + (p > p[places, mine][:, None]).sum(1),
        "outside": p[:, num_ids:].sum(1),
        "readable": readable,
        "saved": saved_along_text(draft_chances(keep, readable), k),
        "lost": lost_along_text(draft_chances(keep, readable), k),
        "confidence": confidence_of(p, q, readable),
    }


def labels_of(ids):
    return tuple(f" t{token}" for token in ids)


def text(
    number,
    seed=0,
    *,
    size=40,
    num_prompt=30,
    drafts=("one",),
    tags=(),
    k=4,
    weight=0.6,
    limit=10**6,
    num_ids=VOCABULARY,
    finish="length",
    given=False,
):
    """weight: how much of p is in q, or a function of the contexts [N] that says so. limit: the drafts' context."""
    generator = np.random.default_rng((seed, number))
    p = simplex(generator, size)
    ids = np.array([generator.choice(VOCABULARY, p=row) for row in p])
    contexts = num_prompt + np.arange(size)
    most_likely = p.argmax(1)
    columns = {}
    for name in drafts:
        share = np.broadcast_to(weight(contexts) if callable(weight) else weight, size)[:, None]
        q = share * p + (1 - share) * simplex(generator, size)
        columns[name] = draft_columns(p, q, ids, readable=contexts <= limit, k=k, num_ids=num_ids)
    row = PromptRow(number, number + 1, f"row {number}", tuple(tags), prompt="Once")
    return AnalysedText(
        RowText(row, "Once", False, (0,) * num_prompt, tuple(ids), not given, GIVEN if given else finish),
        tokens={
            "place": np.arange(size),
            "context": contexts,
            "token": ids,
            "text": labels_of(ids),
            "class_before": np.array(CLASSES, dtype=object)[(np.arange(size) + number) % 3],
            "class": np.array(CLASSES, dtype=object)[generator.integers(0, len(CLASSES), size)],
            "p": p[np.arange(size), ids],
            "p_entropy": -(p * np.log(p)).sum(1),
            "most_likely": most_likely,
            "most_likely_text": labels_of(most_likely),
            "most_likely_p": p.max(1),
        },
        drafts=columns,
    )


def parts(
    generator,
    num_prompts,
    *,
    drafts=("one",),
    agreement=lambda contexts: 0.0,
    size=160,
    shared=0.5,
    prompts=(5, 60),
    early=0.0,
):
    """What a job keeps of `num_prompts` texts of up to `size` tokens: overlaps that drift along a text, with prompts
    that differ (`shared`: how much, for all drafts alike). agreement: added at these contexts [N], in spreads; early:
    added to the first 16 tokens of each text. prompts: their lengths, from and below."""
    rows = {}
    for prompt in range(num_prompts):
        length = int(generator.integers(size // 4, size + 1)) if generator.random() < 0.4 else size
        contexts = int(generator.integers(*prompts)) + np.arange(length)
        own = shared * generator.standard_normal()
        for draft in drafts:
            drift = lfilter([1], [1, -0.5], generator.standard_normal(length))
            overlap = ndtr(own + drift + agreement(contexts) + early * (np.arange(length) < 16))
            for kind, starts, numbers in (
                ("all", (0,), contexts),
                ("depth", DEPTH_STARTS, np.arange(length)),
                ("context", CONTEXT_STARTS, contexts),
                ("settled", CONTEXT_STARTS, np.where(np.arange(length) < 16, -1, contexts)),
            ):
                buckets = np.searchsorted(starts, numbers, side="right") - 1
                for bucket in np.unique(buckets[buckets >= 0]):
                    value = "all" if kind == "all" else bucket_name(starts, bucket)
                    here = overlap[buckets == bucket]
                    rows.setdefault(DraftSlice(draft, kind, value), []).append((prompt, len(here), here.sum()))
    return {part: PerPrompt(*map(np.array, zip(*found, strict=True))) for part, found in rows.items()}
