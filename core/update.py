"""One optimiser update: gradients summed over ranks and clipped, rates, metrics, a guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core.errors import UserError
from core.losses.surrogate import Stats
from core.muon import Muon
from core.packing import MicroBatch
from core.policy import Policy

if TYPE_CHECKING:
    from core.config import OptimiserConfig


class Optimiser:
    """AdamW, or Muon for the layers' matrices beside AdamW for all else, with the rate given at each step."""

    def __init__(self, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimisers = list(optimisers)
        self.base_rates = [[group["lr"] for group in one.param_groups] for one in self.optimisers]

    def step(self, rate_factor: float) -> None:
        """One update at `rate_factor` times the configured learning rates; then the gradients are dropped."""
        for one, rates in zip(self.optimisers, self.base_rates, strict=True):
            for group, rate in zip(one.param_groups, rates, strict=True):
                group["lr"] = rate * rate_factor
            one.step()
            one.zero_grad(set_to_none=True)

    @torch.no_grad()
    def tensors(self, policy: Policy) -> dict[str, Tensor]:
        """Its whole state by "parameter.quantity", to be read and written in place; rates are no part of it,
        they are functions of the step. A state that no update has made yet is made, as zeros."""
        if not any(one.state for one in self.optimisers):
            for parameter in policy.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.step(0.0)  # changes no parameter: rate 0
            for state in (state for one in self.optimisers for state in one.state.values()):
                for quantity in state.values():
                    quantity.zero_()
        names = {parameter: name for name, parameter in policy.causal_lm.named_parameters()}
        return {
            f"{names[parameter]}.{quantity}": value.reshape(1) if value.ndim == 0 else value
            for one in self.optimisers
            for parameter, state in one.state.items()
            for quantity, value in state.items()
        }


def make_optimiser(policy: Policy, config: OptimiserConfig) -> Optimiser:
    """config.name "adamw", or "muon": layers' matrices by Muon at matrix_learning_rate, the rest by AdamW.

    Weight decay spares vectors (norm weights). Muon (Jordan et al., 2024) needs whole matrices: no fsdp. The
    gain of the norm before the head, a policy's own inverse temperature, may have a rate of its own.
    """
    parameters = list(policy.causal_lm.named_parameters())
    matrices = [p for name, p in parameters if p.ndim == 2 and ".layers." in name]
    if config.name == "muon":
        if any(isinstance(p, DTensor) for p in matrices):
            raise UserError("optimiser.name muon needs whole matrices: use policy.sharding none or ddp")
        if config.matrix_learning_rate is None:
            raise UserError("optimiser.matrix_learning_rate is missing: muon needs one (0.02, say)")
        in_muon = {id(p) for p in matrices}
        rest = [(name, p) for name, p in parameters if id(p) not in in_muon]
        muon = Muon(matrices, config.matrix_learning_rate, config.weight_decay)
        return Optimiser([muon, _adamw(rest, config)])
    if config.name != "adamw":
        raise UserError(f"optimiser.name {config.name!r}: expected adamw or muon")
    return Optimiser([_adamw(parameters, config)])


def _adamw(parameters: Sequence[tuple[str, nn.Parameter]], config: OptimiserConfig) -> torch.optim.AdamW:
    vectors = [(name.endswith("model.norm.weight"), p) for name, p in parameters if p.ndim < 2]
    gain_rate = config.temperature_learning_rate
    groups = [
        {"params": [p for _, p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for is_gain, p in vectors if not is_gain], "weight_decay": 0.0},
        {
            "params": [p for is_gain, p in vectors if is_gain],
            "weight_decay": 0.0,
            "lr": config.learning_rate if gain_rate is None else gain_rate,
        },
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)


def rate_factor(config: OptimiserConfig, update: int, total_updates: int) -> float:
    """Factor of the learning rate at `update` (counted from 0): warm-up, then constant or linear to zero.

    Warm-up of 4 gives 1/4, 2/4, 3/4, 1; the linear schedule's last update has 1/total of the rest, so no
    update is ever spent at rate 0.
    """
    if config.schedule not in ("constant", "linear"):
        raise UserError(f"optimiser.schedule {config.schedule!r}: expected constant or linear")
    if update < config.warmup_updates:
        return (update + 1) / config.warmup_updates
    if config.schedule == "constant":
        return 1.0
    return (total_updates - update) / (total_updates - config.warmup_updates)


@torch.no_grad()
def finish_gradients(policy: Policy, max_norm: float) -> float:
    """Sum gradients over replicas (one all-reduce an update), clip their global norm, return it unclipped."""
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    if policy.replicated and dist.is_initialized() and dist.get_world_size() > 1:
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def reduce_stats(stats: Sequence[Stats]) -> dict[str, float]:
    """Metrics of an update over all ranks from those of this rank's micro-batches: sums, maxima, token means.

    A mean is over all tokens, or over its own "…/count", and left out where that is 0. Every micro-batch of
    every rank must have the same names."""
    names = sorted(stats[0])
    device = stats[0][names[0]].device
    table = torch.stack([torch.stack([one[name].double() for name in names]) for one in stats])
    is_max = torch.tensor([name.endswith("/max") for name in names], device=device)
    sums, maxima = table.sum(0), table.amax(0)
    if dist.is_initialized():
        dist.all_reduce(sums)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
    values = dict(zip(names, torch.where(is_max, maxima, sums).tolist(), strict=True))
    counts = {name: values.pop(name) for name in names if name.endswith("/count")}
    tokens = max(values.get("tokens/sum", 1.0), 1.0)
    for name in [name for name in values if name.endswith("/mean")]:
        count = counts.get(name.removesuffix("mean") + "count", tokens)
        values[name] /= count or math.inf
        if not count:
            del values[name]
    return values


class NonFinite(RuntimeError):
    """A loss or gradient became infinite or NaN; the message names the file with the batch that did it."""


def guard_finite(loss: float, grad_norm: float, microbatches: Sequence[MicroBatch], folder: Path) -> None:
    """Stop the run before a non-finite update: save this rank's micro-batches in `folder`, raise NonFinite.

    loss and grad_norm are those of all ranks, so every rank stops.
    """
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    rank = dist.get_rank() if dist.is_initialized() else 0
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"non_finite_rank{rank}.pt"
    plain = [asdict(one) | {"spans": [tuple(span) for span in one.spans]} for one in microbatches]
    torch.save(plain, file)  # tensors, numbers and lists alone, so that `weights_only` can load it
    raise NonFinite(f"loss {loss}, gradient norm {grad_norm}; the update's batch is in {file}")
