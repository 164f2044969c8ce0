"""One of several gloo processes whose gradients test_step_distributed.py compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_policy import LOSSES, accumulate, load_tiny, random_sequences, take_gradients

from core.config import OptimiserConfig
from core.policy import full_parameters, save_policy
from core.update import finish_gradients, make_optimiser, reduce_stats

# token budget, sequences: on 2 and on 4 ranks the first gives dummies, the second several full rounds.
CUTS = [(18, 3), (26, 11)]
OFFLOADED = ("drgrpo", "drgrpo + k3 + entropy")  # losses run with cpu_offload
ADAMW = OptimiserConfig("adamw", 1.0e-2, None, None, 0.1, 0.9, 0.95, 0.05, "constant", 0)
MUON = OptimiserConfig("muon", 1.0e-2, 0.02, None, 0.1, 0.9, 0.95, 0.05, "constant", 0)


def all_gradients(
    model: Path, sharding: str, rank: int, world_size: int, losses: Iterable[str] = LOSSES, **changes: Any
) -> dict:
    """Gradients and metrics of losses at every cut, gradient norms and parameters after updates."""
    policy = load_tiny(model, sharding, **changes)
    results: dict = {}
    for name in losses:
        for budget, count in CUTS:
            sequences = random_sequences(count)
            stats = accumulate(policy, sequences, name, token_budget=budget, rank=rank, world_size=world_size)
            norm = finish_gradients(policy, max_norm=1e9)
            results[name, count] = (take_gradients(policy), reduce_stats(stats), norm)
    for config in (ADAMW, MUON):
        if config is MUON and sharding == "fsdp":
            continue
        policy = load_tiny(model, sharding, **changes)
        optimiser = make_optimiser(policy, config)
        for update in range(3):
            sequences = random_sequences(7, seed=update)
            cut = {"token_budget": 30, "rank": rank, "world_size": world_size}
            accumulate(policy, sequences, "drgrpo", **cut)
            finish_gradients(policy, config.max_grad_norm)
            optimiser.step(0.5)
        results[config.name] = {name: tensor.clone() for name, tensor in full_parameters(policy)}
    return results


def main(model: str, folder: str, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    for sharding in ("ddp", "fsdp"):
        results = all_gradients(Path(model), sharding, rank, world_size)
        torch.save(results, f"{folder}/{sharding}_{rank}.pt")
    results = all_gradients(Path(model), "fsdp", rank, world_size, OFFLOADED, cpu_offload=True)
    torch.save(results, f"{folder}/offload_{rank}.pt")
    policy = load_tiny(Path(model), "fsdp", cpu_offload=True)
    save_policy(policy, _NoTokenizer(), Path(folder) / "saved_offload")
    policy = load_tiny(Path(model), "fsdp", "bfloat16", activation_checkpointing=True)
    accumulate(policy, random_sequences(5), "drgrpo", token_budget=999, rank=rank, world_size=world_size)
    norm = finish_gradients(policy, max_norm=1e9)
    torch.save((take_gradients(policy), norm), f"{folder}/bfloat16_{rank}.pt")
    save_policy(policy, _NoTokenizer(), Path(folder) / "saved")
    dist.destroy_process_group()


class _NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
