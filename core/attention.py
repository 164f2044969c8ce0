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

    boundaries (0, 2, 5): rows [[2, 3, 4]] and [[0, 1]], places_T [3, 4, 0, 1, 2] (in the flattened rows).
    Sequences of similar length share a block of rows, because attention costs the square of a block's
    width; a shorter row's tail repeats its last token.
    """

    blocks_SL: tuple[Tensor, ...]
    places_T: Tensor
    boundaries_S1: Tensor
    longest: int

    @staticmethod
    def of(boundaries: tuple[int, ...], device: torch.device) -> PackedLayout:
        starts_S1 = torch.tensor(boundaries[:-1])[:, None]
        lengths_S1 = torch.tensor(boundaries).diff()[:, None]
        places_T = torch.empty(boundaries[-1], dtype=torch.long)
        blocks, offset = [], 0
        for members in _similar(lengths_S1.flatten().tolist()):
            last_S1 = lengths_S1[members] - 1
            column_L = torch.arange(int(last_S1.max()) + 1)
            rows_SL = starts_S1[members] + torch.minimum(column_L, last_S1)
            real_SL = column_L <= last_S1
            places_T[rows_SL[real_SL]] = offset + real_SL.flatten().nonzero().squeeze(1)
            blocks.append(rows_SL.to(device))
            offset += rows_SL.numel()
        return PackedLayout(
            blocks_SL=tuple(blocks),
            places_T=places_T.to(device),
            boundaries_S1=torch.tensor(boundaries, dtype=torch.int32, device=device),
            longest=int(lengths_S1.max()),
        )


def _similar(lengths: list[int]) -> list[list[int]]:
    """Places of `lengths` in blocks, longest first, in which none is below 3/4 of the longest."""
    blocks: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if blocks and lengths[place] >= 0.75 * lengths[blocks[-1][0]]:
            blocks[-1].append(place)
        else:
            blocks.append([place])
    return blocks


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

    On a GPU in half precision: torch's variable-length flash attention. Elsewhere the sequences become rows,
    in blocks of similar length, for this one operation; no mask is needed, because causal attention cannot
    see a row's tail.
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
    blocks = []
    for rows_SL in layout.blocks_SL:
        query, key, value = (x[rows_SL].transpose(1, 2) for x in (query_TND, key_TMD, value_TMD))
        key, value = (x.repeat_interleave(heads_per_key, dim=1) for x in (key, value))
        out_SNLD = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        blocks.append(out_SNLD.transpose(1, 2).flatten(0, 1))
    return torch.cat(blocks)[layout.places_T][None], None


AttentionInterface.register("packed", packed_attention)
