"""Attention over packed sequences: each token sees its own sequence's past and nothing else.

Importing this file registers "packed" with transformers' attention interface.
Shapes: T packed tokens, S sequences, L the longest of them, N heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface


@dataclass(frozen=True)
class PackedLayout:
    """Where each packed token stands when sequences are laid out as rows, and back.

    boundaries (0, 2, 5): rows_SL [[0, 1, 1], [2, 3, 4]] (a row's tail repeats its last token),
    places_T [0, 1, 3, 4, 5] (in the flattened rows).
    """

    rows_SL: Tensor
    places_T: Tensor
    boundaries_S1: Tensor
    longest: int

    @staticmethod
    def of(boundaries: tuple[int, ...], device: torch.device) -> PackedLayout:
        starts = torch.tensor(boundaries[:-1])
        lengths = torch.tensor(boundaries).diff()
        longest = int(lengths.max())
        column_L = torch.arange(longest)
        rows_SL = starts[:, None] + torch.minimum(column_L, lengths[:, None] - 1)
        places_T = (column_L < lengths[:, None]).flatten().nonzero().squeeze(1)
        return PackedLayout(
            rows_SL=rows_SL.to(device),
            places_T=places_T.to(device),
            boundaries_S1=torch.tensor(boundaries, dtype=torch.int32, device=device),
            longest=longest,
        )


def packed_attention(
    module: nn.Module,
    query_1NTD: Tensor,
    key_1MTD: Tensor,
    value_1MTD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: PackedLayout,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each sequence; returns [1, T, N, D]. No dropout.

    On a GPU in half precision: torch's variable-length flash attention. Elsewhere the sequences become the
    rows of a batch for this one operation; causal attention cannot see a row's tail, so no mask is needed.
    """
    query_TND, key_TMD, value_TMD = (x.squeeze(0).transpose(0, 1) for x in (query_1NTD, key_1MTD, value_1MTD))
    if query_TND.is_cuda and query_TND.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        cuts, longest = layout.boundaries_S1, layout.longest
        out_TND = varlen_attn(
            query_TND.contiguous(),
            key_TMD.contiguous(),
            value_TMD.contiguous(),
            cuts,
            cuts,
            longest,
            longest,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=True,
        )
        assert isinstance(out_TND, Tensor)
        return out_TND[None], None
    heads_per_key = query_TND.shape[1] // key_TMD.shape[1]
    query, key, value = (x[layout.rows_SL].transpose(1, 2) for x in (query_TND, key_TMD, value_TMD))
    key, value = (x.repeat_interleave(heads_per_key, dim=1) for x in (key, value))
    out_SNLD = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out_SNLD.transpose(1, 2).flatten(0, 1)[layout.places_T][None], None


AttentionInterface.register("packed", packed_attention)
