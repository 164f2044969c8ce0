"""Qwen3's forward pass for sampling: fused weights, and a cache in which samples share their prompt.

transformers' modules spend most of a small batch's decoding step in Python and read a prompt's keys once for
every sample of it. The maths is theirs (`transformers.models.qwen3`); tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from core.errors import UserError

# R rows · P prompts, each of several rows · M most rows of a prompt · T positions of a prompt
# S positions behind it · E hidden size · D head size · V vocabulary · K key-value heads of G query heads
ROOM = 32  # positions that a cache grows by, at least
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query, key, value), each [N, heads, D], of N positions → what their queries see, [N, H · D]."""


class Cache:
    """Keys and values of a batch: each prompt's once, [P, K, T, D], and each row's own, [R, K, S, D].

    Rows that share a prompt read it together. Prompts are padded on the left: prompt p's tokens start at
    position `starts_P[p]`. Own keys have room: a new token does not copy them all.
    """

    def __init__(self, starts_P: torch.Tensor, prompt_R: torch.Tensor) -> None:
        self.starts_P = starts_P
        self.prompt_R = prompt_R
        """Each row's prompt; ascending."""
        self.length = 0
        """Positions behind the prompt that every row has."""
        self.prompts: list[tuple[torch.Tensor, ...]] = []
        self.own: list[tuple[torch.Tensor, ...]] = []
        self._number_slots()

    def _number_slots(self) -> None:
        counts_P = torch.bincount(self.prompt_R, minlength=len(self.starts_P))
        before_P = counts_P.cumsum(0) - counts_P
        self.slot_R = torch.arange(len(self.prompt_R), device=self.prompt_R.device) - before_P[self.prompt_R]
        self.most_rows = int(counts_P.max())

    def append(self, layer: int, *new: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Put keys and values of one more position, [R, K, D], behind a layer's own; return all of them."""
        if len(self.own) == layer:
            rows, heads, size = new[0].shape
            self.own.append(
                (new[0].new_empty(rows, heads, ROOM, size), new[0].new_empty(rows, heads, ROOM, size))
            )
        if self.length == self.own[layer][0].shape[2]:
            more = max(ROOM, self.length // 4)
            self.own[layer] = tuple(F.pad(room, (0, 0, 0, more)) for room in self.own[layer])
        for room, values in zip(self.own[layer], new, strict=True):
            room[:, :, self.length] = values
        return tuple(room[:, :, : self.length + 1] for room in self.own[layer])

    def select(self, rows: torch.Tensor) -> None:
        """Keep the rows with these indices, in ascending order, and the prompts that they need."""
        kept_P, self.prompt_R = self.prompt_R[rows].unique(return_inverse=True)
        self.starts_P = self.starts_P[kept_P]
        if len(kept_P) < len(self.prompts[0][0]):
            self.prompts = [(keys[kept_P], values[kept_P]) for keys, values in self.prompts]
        self.own = [tuple(room[rows] for room in rooms) for rooms in self.own]
        self._number_slots()


class Qwen3Sampler:
    """A Qwen3 without gradients. `parameters` are its weights by transformers' names, to be copied into."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        supported = config.model_type == "qwen3" and config.rope_parameters["rope_type"] == "default"
        if not supported or config.attention_bias or getattr(config, "use_sliding_window", False):
            raise UserError(
                "rollout.engine=transformers decodes Qwen3 with plain rotary positions, not this "
                f"{config.model_type}; rollout.engine=vllm runs other models"
            )
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size, self.epsilon = config.head_dim, config.rms_norm_eps
        hidden, inner = config.hidden_size, config.intermediate_size
        both = self.heads + self.groups

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.embedding = empty(config.vocab_size, hidden)
        self.head = self.embedding if config.tie_word_embeddings else empty(config.vocab_size, hidden)
        self.last_norm = empty(hidden)
        self.layers = [
            {
                "norm": empty(hidden),
                "qkv": empty((both + self.groups) * self.size, hidden),
                "qk_norm": empty(both, self.size),
                "out": empty(hidden, self.heads * self.size),
                "mlp_norm": empty(hidden),
                "gate_up": empty(2 * inner, hidden),
                "down": empty(hidden, inner),
            }
            for _ in range(config.num_hidden_layers)
        ]
        base = config.rope_parameters["rope_theta"]
        exponents = torch.arange(0, self.size, 2, dtype=torch.float32, device=device) / self.size
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32, device=device)
        angles = torch.outer(positions, 1.0 / base**exponents)
        self.cos, self.sin = (torch.cat([f, f], -1).to(dtype) for f in (angles.cos(), angles.sin()))
        self.parameters = self._by_name(config.tie_word_embeddings)

    def _by_name(self, tied: bool) -> dict[str, torch.Tensor]:
        named = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.last_norm}
        if not tied:
            named["lm_head.weight"] = self.head
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        for index, layer in enumerate(self.layers):
            query, key, value = layer["qkv"].split(sizes)
            query_norm, key_norm = layer["qk_norm"].split([self.heads, self.groups])
            gate, up = layer["gate_up"].chunk(2)
            parts = {
                "input_layernorm": layer["norm"],
                "self_attn.q_proj": query,
                "self_attn.k_proj": key,
                "self_attn.v_proj": value,
                "self_attn.o_proj": layer["out"],
                "self_attn.q_norm": query_norm,  # one vector, copied to every head
                "self_attn.k_norm": key_norm,
                "post_attention_layernorm": layer["mlp_norm"],
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer["down"],
            }
            named |= {f"model.layers.{index}.{name}.weight": part for name, part in parts.items()}
        return named

    def read_prompts(self, ids_PT: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Fill the cache with the prompts; logits behind the last token of each, [P, V]."""
        prompts, length = ids_PT.shape
        at_T = torch.arange(length, device=ids_PT.device)
        mine_PTS = (at_T >= cache.starts_P[:, None, None]) & (at_T <= at_T[:, None])
        mine_PTS |= at_T == at_T[:, None]  # padding sees itself: a softmax over nothing is NaN
        x_PTE = F.embedding(ids_PT, self.embedding)
        places_PT = (at_T - cache.starts_P[:, None]).clamp(min=0)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            query, key, value = (
                part.view(prompts, length, -1, self.size).transpose(1, 2) for part in (query, key, value)
            )
            cache.prompts.append((key.contiguous(), value.contiguous()))
            seen = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mine_PTS[:, None], enable_gqa=True
            )
            return seen.transpose(1, 2).reshape(prompts * length, -1)

        x_PTE = self._layers(x_PTE.flatten(0, 1), places_PT.flatten(), attend)
        return self._logits(x_PTE.view(prompts, length, -1)[:, -1])

    def next_logits(self, ids_R: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Read one more token a row into the cache; logits behind it, [R, V]."""
        length = cache.prompts[0][0].shape[2]
        padding_PT = torch.arange(length, device=ids_R.device) < cache.starts_P[:, None]

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            own = cache.append(layer, key, value)
            query_RKGD = query.view(len(ids_R), self.groups, -1, self.size) * self.size**-0.5
            return _look_back(query_RKGD, cache, cache.prompts[layer], own, padding_PT).flatten(1)

        places_P = length - cache.starts_P + cache.length
        x_RE = self._layers(F.embedding(ids_R, self.embedding), places_P[cache.prompt_R], attend)
        cache.length += 1
        return self._logits(x_RE)

    def _layers(self, x: torch.Tensor, places: torch.Tensor, attend: Attend) -> torch.Tensor:
        """All layers over N positions, [N, E], of which each stands at its place in its sequence."""
        cos, sin = self.cos[places][:, None], self.sin[places][:, None]
        for index, layer in enumerate(self.layers):
            qkv = F.linear(self._norm(x, layer["norm"]), layer["qkv"]).view(len(x), -1, self.size)
            qk, value = qkv.split([self.heads + self.groups, self.groups], dim=1)
            qk = self._norm(qk, layer["qk_norm"])
            left, right = qk.chunk(2, dim=-1)
            qk = qk * cos + torch.cat([-right, left], dim=-1) * sin
            query, key = qk.split([self.heads, self.groups], dim=1)
            seen = attend(index, query, key, value)
            x = x + F.linear(seen, layer["out"])
            gate, up = F.linear(self._norm(x, layer["mlp_norm"]), layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return x

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self._norm(x, self.last_norm), self.head)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * F.rms_norm(x, x.shape[-1:], eps=self.epsilon)


def _look_back(
    query_RKGD: torch.Tensor,
    cache: Cache,
    prompt: tuple[torch.Tensor, ...],
    own: tuple[torch.Tensor, ...],
    padding_PT: torch.Tensor,
) -> torch.Tensor:
    """Attention of one scaled query a row over its prompt and its own positions, [R, K, G, D].

    A prompt's rows lie side by side as [P, K, M · G], so that its keys and values are read once.
    """
    _, groups, heads, _ = query_RKGD.shape
    prompts, most = len(padding_PT), cache.most_rows

    def spread(values_RKGN: torch.Tensor) -> torch.Tensor:
        table = values_RKGN.new_zeros(prompts, groups, most, heads, values_RKGN.shape[-1])
        table[cache.prompt_R, :, cache.slot_R] = values_RKGN
        return table.flatten(2, 3)

    def collect(table: torch.Tensor) -> torch.Tensor:
        return table.unflatten(2, (most, heads))[cache.prompt_R, :, cache.slot_R]

    scores = spread(query_RKGD) @ prompt[0].transpose(2, 3)
    scores_RKGT = collect(scores.masked_fill_(padding_PT[:, None, None], -torch.inf))
    scores_RKGS = query_RKGD @ own[0].transpose(2, 3)
    weights = torch.cat([scores_RKGT, scores_RKGS], dim=-1).softmax(dim=-1)
    weights_RKGT, weights_RKGS = weights.split([scores_RKGT.shape[-1], scores_RKGS.shape[-1]], dim=-1)
    return collect(spread(weights_RKGT) @ prompt[1]) + weights_RKGS @ own[1]
