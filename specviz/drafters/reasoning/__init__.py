"""Whole reasoning steps by a draft model, graded by the target (arXiv:2504.07891)."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.params import Choice, FloatParam, IntParam

METHOD = Method(
    name="reasoning",
    title="Reasoning steps",
    summary="A draft model writes a whole reasoning step; the target keeps it or writes that reasoning step itself.",
    caution=(
        "Changes the text: where a reasoning step is kept, the draft wrote it; it pays where most are good enough, "
        "as each is read twice by the target and a refused one was for nothing (the bundled drafts' sums mostly are)."
    ),
    source="SpecReason: Pan et al., arXiv:2504.07891",
    roles=("draft",),
    params=(
        Choice(
            "judged_by",
            "graded by",
            "mean_logprob",
            "How the target grades: by how likely it finds the tokens, or by a grade that it is asked for, which only "
            "models that follow instructions can give.",
            {"mean_logprob": "its mean log-probability", "score": "a grade from 0 to 9"},
        ),
        FloatParam(
            "threshold",
            "least log-probability",
            -0.7,
            "The mean per token, in nats, that is kept: -0.7 where the target finds a token 50 % likely on average.",
            -20.0,
            0.0,
            needs=("judged_by", ("mean_logprob",)),
        ),
        FloatParam(
            "least_grade",
            "least grade",
            7.0,
            "The grade that is kept, where the target is asked for one.",
            0,
            9,
            needs=("judged_by", ("score",)),
        ),
        Choice(
            "delimiter",
            "ends with",
            "blank_line",
            "What ends a reasoning step.",
            {"blank_line": "a blank line", "line": "the end of a line"},
        ),
        IntParam("longest", "longest", 48, "A reasoning step has at most so many tokens.", 1, 256),
    ),
    rules=("graded",),
    build=load_build(f"{__name__}.drafter"),
    depth="longest",
    proposer="The small model writes whole reasoning steps of up to ",
    drafts_as="reasoning step",
    why_no_what_if="whole reasoning steps were judged and not their tokens, so no K can be told",
)
