"""Log-probs (and entropies) of chosen tokens from hidden states, without a [tokens, vocabulary] tensor.

Shapes: C tokens, H hidden size, V vocabulary; c and v chunks of C and V.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNKS = {"cpu": (1024, 2048), "cuda": (8192, 8192)}
"""Tokens and words of a chunk: 8 MiB of logits on a CPU, to stay near its caches; 256 MiB on a GPU."""
NAIVE_UP_TO = 1 << 24
"""C·V up to which the logits are kept instead of computed twice: 64 MiB in float32."""


def selected_logprobs(
    hidden_CH: Tensor, head_VH: Tensor, targets_C: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """`naive_logprobs` where its logits are small, else `chunked_logprobs`: the same numbers."""
    if hidden_CH.shape[0] * head_VH.shape[0] <= NAIVE_UP_TO:
        return naive_logprobs(hidden_CH, head_VH, targets_C, temperature=temperature, entropy=entropy)
    chunk_tokens, chunk_vocabulary = CHUNKS["cuda" if hidden_CH.is_cuda else "cpu"]
    return chunked_logprobs(
        hidden_CH,
        head_VH,
        targets_C,
        temperature=temperature,
        entropy=entropy,
        chunk_tokens=chunk_tokens,
        chunk_vocabulary=chunk_vocabulary,
    )


def naive_logprobs(
    hidden_CH: Tensor, head_VH: Tensor, targets_C: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """log softmax(h·Wᵀ / temperature)[target], and that softmax's entropy if asked for: [C], in nats.

    Half-precision inputs give float32: products are summed, and logits kept, in float32.
    """
    compute = torch.promote_types(hidden_CH.dtype, torch.float32)
    logits_CV = hidden_CH.to(compute) @ head_VH.to(compute).T / temperature
    logprobs_CV = torch.log_softmax(logits_CV, dim=-1)
    logprobs_C = -F.nll_loss(logprobs_CV, targets_C, reduction="none")
    return logprobs_C, -(logprobs_CV.exp() * logprobs_CV).sum(-1) if entropy else None


def chunked_logprobs(
    hidden_CH: Tensor,
    head_VH: Tensor,
    targets_C: Tensor,
    *,
    temperature: float,
    entropy: bool,
    chunk_tokens: int,
    chunk_vocabulary: int,
) -> tuple[Tensor, Tensor | None]:
    """`naive_logprobs`, holding at most chunk_tokens × chunk_vocabulary logits at a time.

    Logits are computed again in the backward pass: four matrix products instead of three. Gradients are
    summed in float32 (float64 for float64 inputs). On a GPU in half precision the gradient of the logits
    is rounded to that precision before its two products, as autograd does.
    """
    logprobs_C, entropy_C = _ChunkedLogprobs.apply(  # type: ignore[misc]
        hidden_CH, head_VH, targets_C, temperature, entropy, chunk_tokens, chunk_vocabulary
    )
    return logprobs_C, entropy_C if entropy else None


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """left @ right summed and returned in float32 or better."""
    if left.is_cuda and left.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(left, right, out_dtype=torch.float32)
    compute = torch.promote_types(left.dtype, torch.float32)
    return left.to(compute) @ right.to(compute)


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_CH, head_VH, targets_C, temperature, entropy, chunk_tokens, chunk_vocabulary):
        ctx.entropy, ctx.sizes = entropy, (temperature, chunk_tokens, chunk_vocabulary)
        compute = torch.promote_types(hidden_CH.dtype, torch.float32)
        log_total_C = hidden_CH.new_full(targets_C.shape, torch.finfo(compute).min, dtype=compute)
        chosen_C, entropy_C = torch.zeros_like(log_total_C), torch.zeros_like(log_total_C)
        for tokens, words, logits_cv, _ in _logit_chunks(hidden_CH, head_VH, *ctx.sizes):
            local_c = targets_C[tokens] - words.start
            inside_c = (local_c >= 0) & (local_c < logits_cv.shape[1])
            found_c = logits_cv.gather(1, local_c.clamp(0, logits_cv.shape[1] - 1)[:, None])[:, 0]
            chosen_C[tokens] += torch.where(inside_c, found_c, 0.0)
            before_c = log_total_C[tokens].clone()
            log_total_c = torch.logaddexp(before_c, logits_cv.logsumexp(dim=-1))
            log_total_C[tokens] = log_total_c
            if entropy:
                # Of the softmax over the words so far; a new chunk takes `shift` from their log-probs.
                shift_c = log_total_c - before_c
                logp_cv = logits_cv.sub_(log_total_c[:, None])
                added_c = (logp_cv.exp() * logp_cv).sum(-1)
                entropy_C[tokens] = (-shift_c).exp() * (entropy_C[tokens] + shift_c) - added_c
        ctx.save_for_backward(hidden_CH, head_VH, targets_C, log_total_C, entropy_C)
        return chosen_C - log_total_C, entropy_C

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logprobs_C, grad_entropy_C):
        """∂log p_t/∂l_j = 1[j = t] − p_j  and  ∂H/∂l_j = −p_j (log p_j + H)."""
        hidden_CH, head_VH, targets_C, log_total_C, entropy_C = ctx.saved_tensors
        temperature = ctx.sizes[0]
        grad_hidden_CH = torch.zeros_like(hidden_CH, dtype=log_total_C.dtype)
        grad_head_VH = torch.zeros_like(head_VH)
        sums = {}
        for tokens, words, logits_cv, head_vH in _logit_chunks(hidden_CH, head_VH, *ctx.sizes):
            logp_cv = logits_cv.sub_(log_total_C[tokens, None])
            grad_c = grad_logprobs_C[tokens]
            if ctx.entropy:
                scale_cv = (logp_cv + entropy_C[tokens, None]).mul_(-grad_entropy_C[tokens, None])
                scale_cv.sub_(grad_c[:, None])
                grad_cv = logp_cv.exp_().mul_(scale_cv)
            else:
                grad_cv = logp_cv.exp_().mul_(-grad_c[:, None])
            local_c = targets_C[tokens] - words.start
            inside_c = (local_c >= 0) & (local_c < grad_cv.shape[1])
            column_c1 = local_c.clamp(0, grad_cv.shape[1] - 1)[:, None]
            grad_cv.scatter_add_(1, column_c1, torch.where(inside_c, grad_c, 0.0)[:, None])
            if temperature != 1.0:
                grad_cv.div_(temperature)
            if grad_cv.is_cuda:
                grad_cv = grad_cv.to(head_VH.dtype)
            grad_hidden_CH[tokens] += _matmul(grad_cv, head_vH)
            part_vH = _matmul(grad_cv.T, hidden_CH[tokens])
            sums[words.start] = sums[words.start].add_(part_vH) if words.start in sums else part_vH
            if tokens.stop >= targets_C.shape[0]:
                grad_head_VH[words] = sums.pop(words.start)
        return grad_hidden_CH.to(hidden_CH.dtype), grad_head_VH, None, None, None, None, None


def _logit_chunks(
    hidden_CH: Tensor,
    head_VH: Tensor,
    temperature: float,
    chunk_tokens: int,
    chunk_vocabulary: int,
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """(token slice, vocabulary slice, logits [c, v], head [v, H]), the tokens in the inner loop."""
    on_gpu = hidden_CH.is_cuda
    compute = torch.promote_types(hidden_CH.dtype, torch.float32)
    left_CH = hidden_CH if on_gpu else hidden_CH.to(compute)
    for first in range(0, head_VH.shape[0], chunk_vocabulary):
        words = slice(first, min(first + chunk_vocabulary, head_VH.shape[0]))
        head_vH = head_VH[words] if on_gpu else head_VH[words].to(compute)
        for start in range(0, hidden_CH.shape[0], chunk_tokens):
            tokens = slice(start, min(start + chunk_tokens, hidden_CH.shape[0]))
            logits_cv = _matmul(left_CH[tokens], head_vH.T)
            yield tokens, words, logits_cv.div_(temperature) if temperature != 1.0 else logits_cv, head_vH
