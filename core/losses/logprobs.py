"""Log-probabilities (and entropy) of chosen tokens from hidden states, without the logits of all tokens.

Shapes: C tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def naive_logprobs(
    hidden_CH: Tensor, head_VH: Tensor, targets_C: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """log softmax(h·Wᵀ / temperature)[target], and the entropy of that softmax if asked for, in nats.

    Builds [C, V] several times; the reference for `chunked_logprobs`, and the faster one while C·V is small.
    Half-precision inputs give float32 results: products are summed, and logits kept, in float32.
    """
    compute = torch.promote_types(hidden_CH.dtype, torch.float32)
    logits_CV = hidden_CH.to(compute) @ head_VH.to(compute).T / temperature
    logprobs_CV = torch.log_softmax(logits_CV, dim=-1)
    logprobs_C = logprobs_CV.gather(-1, targets_C[:, None]).squeeze(-1)
    return logprobs_C, -(logprobs_CV.exp() * logprobs_CV).sum(-1) if entropy else None
