"""What a training loop asks of p and q: against every outcome enumerated, simulated steps, the what-if and the lab."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import specviz
from specviz import expected_acceptance_by_position, expected_tokens_per_call
from specviz.trace.shipped import shipped_trace
from tests.helpers.documents import ROOT, SNIPPETS

EXACT = 1e-12
SIGMAS = 4.9


def walk(size, k, is_accepted):
    """(steps, steps that draft, those that accept 1, 2, ... k or more), by the words of the rule."""
    at, steps, drafting, accepting = 0, 0, 0, np.zeros(k)
    while at < size:
        room = min(k, size - at - 1)  # the last token is the target's
        accepted = next((j for j in range(room) if not is_accepted(at, j)), room)
        steps, drafting = steps + 1, drafting + (room > 0)
        accepting[:accepted] += 1
        at += accepted + 1
    return steps, drafting, accepting


def enumerated(chances, k, by_start=False):
    """(tokens per call, acceptance by position) over every pattern; chances: by place, or by start and depth."""
    size = len(chances)
    places = [(s, j) for s in range(size) for j in range(min(k, size - s - 1))] if by_start else range(size)
    calls, drafting, accepting = 0.0, 0.0, np.zeros(k)
    for pattern in itertools.product((False, True), repeat=len(places)):
        flags = dict(zip(places, pattern, strict=True))
        weight = np.prod([chances[place] if flag else 1 - chances[place] for place, flag in flags.items()])
        counts = walk(size, k, lambda s, j, flags=flags: flags[(s, j) if by_start else s + j])
        calls, drafting, accepting = (
            total + weight * count for total, count in zip((calls, drafting, accepting), counts, strict=True)
        )
    return size / calls, accepting / drafting


def assert_both(p, q, k, expected, within=EXACT):
    per_call, by_position = expected
    assert expected_tokens_per_call(p, q, k) == pytest.approx(per_call, abs=within)
    assert np.abs(expected_acceptance_by_position(p, q, k) - by_position).max() < within


def rows(seed, *shape):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]) / 2, shape[:-1])


# ---- every outcome ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4, 12])
def test_chances_along_a_text_are_those_of_every_outcome(k):
    p, q = np.random.default_rng(1).uniform(0.1, 1, (2, 9))
    assert_both(p, q, k, enumerated(np.minimum(1, q / p), k))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_rows_are_those_of_every_outcome(k):
    p, q = rows(2, 2, 9, 5)
    assert_both(p, q, k, enumerated(np.minimum(p, q).sum(1), k))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("vocab_size", [None, 5])
def test_a_head_is_read_by_where_its_step_began(k, vocab_size):
    size, depths = 5, 4
    if vocab_size is None:
        p, q = np.random.default_rng(3).random(size), np.random.default_rng(4).random((size, depths))
    else:
        p, q = rows(3, size, vocab_size), rows(4, size, depths, vocab_size)
    chances = np.zeros((size, depths))
    for s, j in itertools.product(range(size), range(depths)):
        if s + j >= size:
            q[s, j] = np.nan  # what lies behind the text is not read
        elif vocab_size is None:
            chances[s, j] = min(1, q[s, j] / p[s + j])
        else:
            chances[s, j] = np.minimum(p[s + j], q[s, j]).sum()
    assert_both(p, q, k, enumerated(chances, k, by_start=True))


def test_rows_are_the_mean_over_the_texts_that_the_target_may_write():
    p, q = rows(5, 2, 4, 3)
    calls = 0.0
    for text in itertools.product(range(3), repeat=4):
        here = p[range(4), text], q[range(4), text]
        calls += here[0].prod() * 4 / expected_tokens_per_call(*here, 2)
    assert expected_tokens_per_call(p, q, 2) == pytest.approx(4 / calls, abs=EXACT)


def test_a_text_that_ended_early_drafts_at_its_last_token_too():
    half = [0.5] * 3
    steps = 1 + 0.5 + (0.5 + 0.5 * 0.5)  # begun at each token with k = 1; the last one drafts only with room behind it
    accepting = 0.5 * 1 + 0.5 * 0.5
    full, early = (expected_acceptance_by_position([1.0] * 3, half, 1, most_tokens=most) for most in (None, 9))
    assert full == pytest.approx([accepting / 1.5], abs=EXACT)
    assert early == pytest.approx([accepting / steps], abs=EXACT)


# ---- simulated steps -------------------------------------------------------------------------------------------------


def simulate(p_row, q_row, size, k, generator):
    """One text by speculative sampling: what `walk` counts, and the probabilities of its tokens under both laws."""
    text, counts = [], [0, 0, np.zeros(k)]
    while len(text) < size:
        room = min(k, size - len(text) - 1)
        accepted = 0
        counts[0], counts[1] = counts[0] + 1, counts[1] + (room > 0)
        while accepted < room:
            p, q = p_row(text), q_row(text)
            drafted = generator.choice(len(q), p=q)
            if generator.random() * q[drafted] >= p[drafted]:
                break
            counts[2][accepted] += 1
            accepted += 1
            text.append(int(drafted))
        last = p_row(text)
        if accepted < room:
            last = np.maximum(last - q_row(text), 0)
            last /= last.sum()
        text.append(int(generator.choice(len(last), p=last)))
    probabilities = [[law(text[:t])[text[t]] for t in range(size)] for law in (p_row, q_row)]
    return counts, probabilities


def assert_counted(differences):
    """Whether values [N, ...] have mean 0."""
    differences = np.array(differences)
    error = differences.std(0, ddof=1) / np.sqrt(len(differences))
    assert (np.abs(differences.mean(0)) < SIGMAS * error).all()


def test_a_simulated_loop_over_a_chain_law_makes_as_many_calls_and_accepts_as_many():
    table = rows(6, 2, 4, 4)  # of each law, by the token before
    generator = np.random.default_rng(7)
    p_row, q_row = (lambda text, law=law: law[text[-1] if text else 0] for law in table)
    differences = []
    for _ in range(1500):
        (calls, drafting, accepting), (p, q) = simulate(p_row, q_row, 10, 3, generator)
        expected = 10 / expected_tokens_per_call(p, q, 3)
        shares = expected_acceptance_by_position(p, q, 3)
        differences.append([calls - expected, *(accepting - drafting * shares)])
    assert_counted(differences)


def test_a_simulated_loop_over_rows_makes_as_many_calls_and_accepts_as_many():
    p, q = rows(8, 2, 8, 4)
    generator = np.random.default_rng(9)
    counts = [simulate(lambda text: p[len(text)], lambda text: q[len(text)], 8, 3, generator)[0] for _ in range(1500)]
    assert_counted([calls - 8 / expected_tokens_per_call(p, q, 3) for calls, *_ in counts])
    shares = expected_acceptance_by_position(p, q, 3)
    assert_counted([accepting - drafting * shares for _, drafting, accepting in counts])


# ---- the what-if and the lab -----------------------------------------------------------------------------------------


def test_a_recorded_run_gives_what_its_what_if_gives():
    trace = shipped_trace("first-visit")
    scores = trace.scores[-1]
    frame = specviz.what_if(trace)
    got = [expected_tokens_per_call(scores.p, scores.q, k) for k in frame.k]
    assert np.abs(got - frame.tokens_per_call).max() < EXACT


def test_a_text_of_the_lab_has_the_labs_numbers():
    job = specviz.align(["Once upon a time"], draft="fable-draft", k=4, max_new_tokens=24, costs={})
    draft = job.summary.draft("fable-draft")
    kept = job.tokens.keep.to_numpy()
    assert job.prompts.finish.tolist() == ["length"]
    assert_both(np.ones(24), kept, 4, (draft.tokens_per_call[3], draft.by_position), within=1e-6)


# ---- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [((40,), (40,)), ((40, 30),) * 2, ((40, 30), (40, 4, 30))])
def test_tensors_give_what_arrays_give(shape):
    p, q = (rows(10, *each) for each in shape)
    arrays = expected_tokens_per_call(p, q, 4)
    tensors = torch.tensor(p), torch.tensor(q, requires_grad=True)
    assert expected_tokens_per_call(*tensors, 4) == pytest.approx(arrays, abs=EXACT)
    assert expected_tokens_per_call(tensors[0], q, 4) == pytest.approx(arrays, abs=EXACT)
    assert expected_tokens_per_call(p.tolist(), q.tolist(), 4) == arrays
    assert expected_tokens_per_call(*(each.float() for each in tensors), 4) == pytest.approx(arrays, rel=1e-5)
    narrow = expected_tokens_per_call(*(each.bfloat16() for each in tensors), 4)
    assert narrow == pytest.approx(arrays, rel=0.02)
    assert narrow == pytest.approx(
        expected_tokens_per_call(*(each.detach().bfloat16().float().numpy() for each in tensors), 4), rel=1e-5
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rows_on_a_gpu_give_what_they_give_on_the_cpu(dtype):
    p, q = (torch.tensor(each, dtype=dtype) for each in rows(11, 2, 300, 500))
    here, there = expected_tokens_per_call(p, q, 6), expected_tokens_per_call(p.cuda(), q.cuda(), 6)
    assert there == pytest.approx(here, rel=1e-5)


def test_rounded_rows_are_rows():
    p, q = torch.randn(2, 64, 5_000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    exact = expected_tokens_per_call(p, q, 4)
    for dtype in (torch.bfloat16, torch.float16):
        assert expected_tokens_per_call(p.to(dtype), q.to(dtype), 4) == pytest.approx(exact, rel=1e-3)
    assert expected_tokens_per_call(p.bfloat16(), p.bfloat16(), 4) == pytest.approx(64 / 13, rel=1e-6)


def test_the_result_is_a_plain_number_without_a_gradient():
    p, q = torch.rand(2, 8, requires_grad=True)
    assert type(expected_tokens_per_call(p, q, 2)) is float
    assert type(expected_acceptance_by_position(p, q, 2)) is np.ndarray


def test_nothing_drafts_in_a_text_of_one_token():
    assert expected_tokens_per_call([0.5], [0.5], 3) == 1
    assert np.isnan(expected_acceptance_by_position([0.5], [0.5], 3)).tolist() == [True] * 3


def test_arrays_of_numpy_load_no_torch():
    code = (
        "import sys, numpy, specviz\n"
        "rows = numpy.full((5, 4), 0.25)\n"
        "assert specviz.expected_tokens_per_call(rows, rows, 2) == 2.5\n"
        "assert specviz.expected_acceptance_by_position(rows[0], rows[0], 2).tolist() == [1, 1]\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_training_loop_of_the_documents_tells_more_tokens_per_call_as_it_learns(capsys):
    (code,) = (code for code in SNIPPETS if "expected_tokens_per_call" in code)
    assert len(code.splitlines()) <= 14
    exec(code, {})
    per_call = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(per_call) > 2
    assert per_call == sorted(per_call)
    assert per_call[-1] > per_call[0] + 1


# ---- what cannot be --------------------------------------------------------------------------------------------------

UNIFORM = np.full((6, 4), 0.25)


@pytest.mark.parametrize(
    ("p", "q", "k", "says"),
    [
        (UNIFORM, UNIFORM, 0, "from 1 to 256"),
        (UNIFORM, UNIFORM, 257, "from 1 to 256"),
        (UNIFORM, UNIFORM, 1.5, "whole number"),
        (UNIFORM, UNIFORM, True, "whole number"),
        (UNIFORM, UNIFORM[:, :3], 4, r"4 to 32 depths behind the first \(got shapes \(6, 4\) and \(6, 3\);"),
        (UNIFORM[:, 0], UNIFORM, 5, "5 to 32 depths"),
        (UNIFORM[:, 0], np.full((6, 300), 0.1), 5, "5 to 32 depths"),  # rows in place of the tokens' own
        (UNIFORM[:5], UNIFORM, 2, "the shape of p"),
        (0.5, 0.5, 2, r"p must be \[T\] or \[T, V\]"),
        ([], [], 2, "T >= 1"),
        ([[[1.0]]], [[[1.0]]], 2, r"p must be \[T\] or \[T, V\]"),
        (-UNIFORM, UNIFORM, 2, "every row of p .*a negative number"),
        (UNIFORM, UNIFORM * np.nan, 2, "every row of q .*not-a-number"),
        (UNIFORM, UNIFORM * 1.02, 2, r"every row of q .*a sum of 1.02\)"),
        (UNIFORM, UNIFORM * [[1], [1], [0], [1], [1], [1]], 2, r"a sum of 0\)"),
        (torch.randn(6, 4).abs() + 1, torch.tensor(UNIFORM), 2, "every row of p"),
        ([0.5, 1.2], [0.5, 0.5], 2, r"must be probabilities \(got 1.2\)"),
        ([0.5, 0.5], [-0.1, 0.5], 2, "must be probabilities"),
        ([0.5, np.nan], [0.1, 0.5], 2, "not-a-number"),
    ],
)
@pytest.mark.parametrize("ask", [expected_tokens_per_call, expected_acceptance_by_position])
def test_what_cannot_be_is_said(ask, p, q, k, says):
    with pytest.raises(ValueError, match=says):
        ask(p, q, k)


def test_a_length_below_the_texts_own_is_refused():
    with pytest.raises(ValueError, match="most_tokens must be >= 2"):
        expected_acceptance_by_position([0.5] * 2, [0.5] * 2, 1, most_tokens=1)
