"""A process of a run that trains a little and saves, or restores and compares: see test_checkpoint.py."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_policy import accumulate, random_sequences
from torch.distributed.tensor import DTensor

from core.checkpoint import Checkpointer
from core.config import Config, load_config
from core.policy import full_parameters, load_policy
from core.run import Run
from core.update import finish_gradients, make_optimiser

TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"


def tiny_config(model: Path, folder: Path, *overrides: str) -> Config:
    """A run of the tiny experiment with the model of tests/tiny_policy.py."""
    settings = (f"run.folder={folder}", "run.wandb=disabled", f"policy.path={model}", "policy.dtype=float64")
    return load_config(Config, TINY, [*settings, "run.keep_last=2", *overrides])


def main(mode: str, model: Path, folder: Path, sharding: str) -> None:
    wish = "run.on_existing=resume_changed"
    with Run(tiny_config(model, folder, f"policy.sharding={sharding}", wish), "test") as run:
        policy = load_policy(run.config.policy)
        optimiser = make_optimiser(policy, run.config.optimiser)
        counts = Counter({"proved": run.rank + 1}) if mode == "save" else Counter()
        checkpoint = Checkpointer(run, policy, optimiser, {"lean": counts})
        run.open_folder()
        done = checkpoint.restore()
        if mode == "save":
            for update in range(3):
                cut = {"token_budget": 30, "rank": run.rank, "world_size": run.world_size}
                accumulate(policy, random_sequences(7, seed=update), "drgrpo", **cut)
                finish_gradients(policy, max_norm=1.0)
                optimiser.step(1.0)
            checkpoint.save(3, best=None, last=True)
        state = dict(full_parameters(policy))
        for name, value in optimiser.tensors(policy).items():
            state[f"optimiser.{name}"] = value.full_tensor() if isinstance(value, DTensor) else value
        file = folder.with_suffix(".safetensors")
        if mode == "save" and run.rank == 0:
            save_file({name: value.contiguous() for name, value in state.items()}, file)
        if mode == "compare":
            assert done == 3
            expected = load_file(file)
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in expected)
            assert any(value.abs().max() > 0 for name, value in state.items() if "exp_avg" in name)
            assert sum(count["proved"] for count in run.gather([counts])) == 3
    if sharding == "ddp":  # fsdp's own mesh keeps the ranks' group
        # The checkpointer still lives here; at the process's exit a thread of gloo's could abort it.
        threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
        assert not any("gloo" in name for name in threads), threads


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
