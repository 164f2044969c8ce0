"""Log-probs in chunks equal the naive ones: values, gradients, entropy, temperature, precision, memory."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.losses import logprobs
from core.losses.logprobs import chunked_logprobs, naive_logprobs, selected_logprobs


def inputs(tokens: int, hidden: int, vocabulary: int, dtype: torch.dtype, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden_CH = torch.randn(tokens, hidden, generator=generator, dtype=torch.float64)
    head_VH = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64) / hidden**0.5
    targets_C = torch.randint(vocabulary, (tokens,), generator=generator)
    return (3 * hidden_CH).to(dtype).requires_grad_(), head_VH.to(dtype).requires_grad_(), targets_C


def outcome(function, hidden_CH, head_VH, targets_C, *, entropy: bool, temperature: float, **chunks):
    """Log-probs, entropies and both gradients of a weighted, masked sum of the two."""
    logprobs_C, entropy_C = function(
        hidden_CH, head_VH, targets_C, temperature=temperature, entropy=entropy, **chunks
    )
    place_C = torch.arange(len(targets_C), dtype=logprobs_C.dtype)
    weights_C = torch.cos(place_C) * (place_C % 3 != 1)  # every third token is masked
    total = (weights_C * logprobs_C).sum()
    if entropy:
        total = total + (torch.sin(place_C) * entropy_C).sum()
    gradients = torch.autograd.grad(total, [hidden_CH, head_VH])
    return [logprobs_C.detach(), entropy_C.detach() if entropy else None, *gradients]


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left.double() - right.double()).norm() / right.double().norm())


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 9),
    vocabulary=st.integers(1, 17),
    chunk_tokens=st.integers(1, 10),
    chunk_vocabulary=st.integers(1, 18),
    temperature=st.sampled_from([0.6, 1.0, 2.5]),
    entropy=st.booleans(),
)
def test_any_chunking_equals_the_naive_path(
    tokens, vocabulary, chunk_tokens, chunk_vocabulary, temperature, entropy
):
    data = inputs(tokens, 5, vocabulary, torch.float64, seed=tokens * vocabulary)
    same = {"entropy": entropy, "temperature": temperature}
    chunks = {"chunk_tokens": chunk_tokens, "chunk_vocabulary": chunk_vocabulary}
    for left, right in zip(
        outcome(chunked_logprobs, *data, **same, **chunks),
        outcome(naive_logprobs, *data, **same),
        strict=True,
    ):
        if right is None:
            assert left is None
        else:
            torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def test_by_hand():
    # One token, logits (0, log 3)·: p = (1/4, 3/4); at temperature 2 the odds are √3.
    hidden_CH, head_VH = torch.ones(1, 1).double(), torch.tensor([[0.0], [math.log(3)]]).double()
    targets_C = torch.tensor([1])
    for function, chunks in (
        (naive_logprobs, {}),
        (chunked_logprobs, {"chunk_tokens": 1, "chunk_vocabulary": 1}),
        (selected_logprobs, {}),
    ):
        logprob_C, entropy_C = function(
            hidden_CH, head_VH, targets_C, temperature=1.0, entropy=True, **chunks
        )
        assert float(logprob_C) == pytest.approx(math.log(3 / 4))
        assert float(entropy_C) == pytest.approx(math.log(4) - 3 / 4 * math.log(3))
        logprob_C, none = function(hidden_CH, head_VH, targets_C, temperature=2.0, entropy=False, **chunks)
        assert float(logprob_C) == pytest.approx(math.log(3**0.5 / (1 + 3**0.5)))
        assert none is None


def test_bfloat16_weights_are_summed_in_float32():
    """Against float64 on the same bfloat16 numbers: values as float32's, gradients to one rounding."""
    hidden_CH, head_VH, targets_C = inputs(64, 96, 301, torch.bfloat16)
    exact = outcome(
        naive_logprobs,
        hidden_CH.detach().double().requires_grad_(),
        head_VH.detach().double().requires_grad_(),
        targets_C,
        entropy=True,
        temperature=0.7,
    )
    chunks = {"chunk_tokens": 16, "chunk_vocabulary": 50}
    ours = outcome(chunked_logprobs, hidden_CH, head_VH, targets_C, entropy=True, temperature=0.7, **chunks)
    naive = outcome(naive_logprobs, hidden_CH, head_VH, targets_C, entropy=True, temperature=0.7)
    assert ours[0].dtype == ours[1].dtype == torch.float32
    assert [x.dtype for x in ours[2:]] == [torch.bfloat16] * 2
    assert max(relative(ours[0], exact[0]), relative(ours[1], exact[1])) < 1e-6
    assert max(relative(ours[2], exact[2]), relative(ours[3], exact[3])) < 2**-9  # bfloat16 keeps 8 bits
    assert max(relative(ours[2], naive[2]), relative(ours[3], naive[3])) < 1e-4
    coarse_CV = hidden_CH.detach() @ head_VH.detach().T / 0.7  # logits rounded to bfloat16, what we avoid
    coarse_C = torch.log_softmax(coarse_CV.float(), -1).gather(1, targets_C[:, None])[:, 0]
    assert relative(coarse_C, exact[0]) > 100 * relative(ours[0], exact[0])


def test_large_logits_do_not_overflow():
    hidden_CH, head_VH, targets_C = inputs(4, 8, 40, torch.float32)
    huge_CH = (hidden_CH.detach() * 1e4).requires_grad_()
    chunks = {"chunk_tokens": 3, "chunk_vocabulary": 7}
    ours = outcome(chunked_logprobs, huge_CH, head_VH, targets_C, entropy=True, temperature=1.0, **chunks)
    assert all(torch.isfinite(x).all() for x in ours if x is not None)
    naive = outcome(naive_logprobs, huge_CH, head_VH, targets_C, entropy=True, temperature=1.0)
    torch.testing.assert_close(ours[0], naive[0], rtol=1e-5, atol=1e-2)


def test_no_tensor_of_all_tokens_by_the_vocabulary_exists():
    """The largest tensor of a forward and backward pass has a chunk's size, or the head's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.untyped_storage().nbytes() // 4)
            return result

    data = inputs(256, 8, 1000, torch.float32)
    with Largest() as chunked:
        chunks = {"chunk_tokens": 32, "chunk_vocabulary": 100}
        outcome(chunked_logprobs, *data, entropy=True, temperature=1.0, **chunks)
    with Largest() as naive:
        outcome(naive_logprobs, *data, entropy=True, temperature=1.0)
    assert chunked.elements <= 1000 * 8  # the head itself
    assert naive.elements == 256 * 1000


def test_the_path_is_chosen_by_size(monkeypatch):
    data = inputs(8, 4, 30, torch.float64)
    logprobs_C, _ = selected_logprobs(*data, temperature=0.8, entropy=False)
    assert "ChunkedLogprobs" not in str(logprobs_C.grad_fn)
    before = outcome(selected_logprobs, *data, entropy=True, temperature=0.8)
    monkeypatch.setattr(logprobs, "NAIVE_UP_TO", 0)
    after = outcome(selected_logprobs, *data, entropy=True, temperature=0.8)
    for left, right in zip(before, after, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)
    logprobs_C, _ = selected_logprobs(*data, temperature=0.8, entropy=False)
    assert "ChunkedLogprobs" in str(logprobs_C.grad_fn)


def test_no_token_at_all():
    hidden_CH, head_VH, targets_C = inputs(0, 4, 30, torch.float64)
    chunks = {"chunk_tokens": 3, "chunk_vocabulary": 7}
    ours = outcome(chunked_logprobs, hidden_CH, head_VH, targets_C, entropy=True, temperature=1.0, **chunks)
    assert ours[0].shape == (0,)
    assert ours[3].abs().sum() == 0
