"""Attention over packed sequences: each token sees its own sequence's past and nothing else.

Importing this file registers "packed" with transformers' attention interface.
Shapes: T packed tokens, S sequences, L the longest of them, N heads, D head size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface

if TYPE_CHECKING:
    from core.packing import Span


@dataclass(frozen=True)
class PackedLayout:
    """Where each packed token stands when sequences are laid out whole, and back.

    A prompt that several sequences share is laid out again for each: attention reads it for each of them,
    the rest of the model once. M: tokens laid out, T or more.
    Spans (0, 1, 1, 1) and (2, 1, 3, 2), two sequences of 2 and 3 tokens: rows [[2, 3, 4]] and [[0, 1]],
    places_T [3, 4, 0, 1, 2] (in the flattened rows).
    Sequences of similar length share a block of rows, because attention costs the square of a block's
    width; a shorter row's tail repeats the micro-batch's first token.
    """

    blocks_SL: tuple[Tensor, ...]
    places_T: Tensor
    expanded_M: Tensor | None
    """Sequences end to end, as places among the T tokens; None if that is what they are already."""
    back_T: Tensor
    """Where in expanded_M a token stands; of a shared prompt, one of its copies, which are all the same."""
    boundaries_S1: Tensor
    """Cumulated lengths in expanded_M, from 0 to M."""
    longest: int

    @staticmethod
    def of(spans: Sequence[Span], device: torch.device) -> PackedLayout:
        rows = [torch.tensor(span.places()) for span in spans]
        expanded_M = torch.cat(rows)
        tokens = int(expanded_M.max()) + 1
        places_T, back_T = torch.empty(2, tokens, dtype=torch.long)
        back_T[expanded_M] = torch.arange(len(expanded_M))
        lengths = [len(row) for row in rows]
        blocks, offset = [], 0
        for members in _similar(lengths):
            width = lengths[members[0]]
            for member in members:
                places_T[rows[member]] = offset + torch.arange(lengths[member])
                offset += width
            block = pad_sequence([rows[member] for member in members], batch_first=True)
            blocks.append(block.to(device))
        return PackedLayout(
            blocks_SL=tuple(blocks),
            places_T=places_T.to(device),
            expanded_M=expanded_M.to(device) if len(expanded_M) > tokens else None,
            back_T=back_T.to(device),
            boundaries_S1=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device),
            longest=max(lengths),
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

        if layout.expanded_M is not None:
            query_TND, key_TMD, value_TMD = (x[layout.expanded_M] for x in (query_TND, key_TMD, value_TMD))
        cuts, longest = layout.boundaries_S1, layout.longest
        out = varlen_attn(
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
        assert isinstance(out, Tensor)
        return (out if layout.expanded_M is None else out[layout.back_T])[None], None
    heads_per_key = query_TND.shape[1] // key_TMD.shape[1]
    blocks = []
    for rows_SL in layout.blocks_SL:
        query, key, value = (x[rows_SL].transpose(1, 2) for x in (query_TND, key_TMD, value_TMD))
        key, value = (x.repeat_interleave(heads_per_key, dim=1) for x in (key, value))
        out_SNLD = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        blocks.append(out_SNLD.transpose(1, 2).flatten(0, 1))
    return torch.cat(blocks)[layout.places_T][None], None


AttentionInterface.register("packed", packed_attention)
