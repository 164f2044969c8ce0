"""The same update on 1, 2 and 4 gloo processes, replicated and sharded: gradients, metrics and parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_worker import CUTS, OFFLOADED, all_gradients
from tiny_policy import LOSSES, accumulate, distance, load_tiny, random_sequences, take_gradients, write_model
from transformers import AutoModelForCausalLM

from core.packing import pack
from core.update import finish_gradients

WORLDS = (2, 4)
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model: Path) -> dict:
    return all_gradients(model, "none", rank=0, world_size=1)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world}-processes")
def world(model: Path, tmp_path_factory: pytest.TempPathFactory, request) -> tuple[int, Path]:
    """(number of processes, folder with what they wrote)."""
    folder = tmp_path_factory.mktemp("world")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    worker = Path(__file__).with_name("distributed_worker.py")
    command = [sys.executable, str(worker), str(model), str(folder)]
    workers = [
        subprocess.Popen([*command, str(rank), str(request.param)], env=environment, stderr=subprocess.PIPE)
        for rank in range(request.param)
    ]
    try:
        errors = [worker.communicate()[1].decode()[-3000:] for worker in workers]
    finally:  # pytest's own limit, or Ctrl-C: leave no process behind
        for worker in workers:
            worker.kill()
    assert not any(worker.returncode for worker in workers), "\n".join(errors)
    return request.param, folder


@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "offload"])
def test_gradients_and_metrics_do_not_depend_on_the_processes(alone, world, sharding):
    size, folder = world
    for rank in range(size):
        results = torch.load(folder / f"{sharding}_{rank}.pt", weights_only=True)
        for name in OFFLOADED if sharding == "offload" else LOSSES:
            for _, count in CUTS:
                gradient, metrics, norm = alone[name, count]
                other_gradient, other_metrics, other_norm = results[name, count]
                assert distance(gradient, other_gradient) < 1e-10, (name, count, rank)
                assert other_norm == pytest.approx(norm, rel=1e-10)
                assert other_metrics == pytest.approx(metrics, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "offload"])
def test_parameters_after_three_clipped_updates_are_the_same(alone, world, sharding):
    size, folder = world
    results = [torch.load(folder / f"{sharding}_{rank}.pt", weights_only=True) for rank in range(size)]
    assert distance(alone["adamw"], results[-1]["adamw"]) < 1e-9
    if sharding == "ddp":
        assert distance(alone["muon"], results[-1]["muon"]) < 1e-9
        for name in alone["muon"]:
            assert all(torch.equal(results[0]["muon"][name], r["muon"][name]) for r in results)


def test_the_cuts_are_the_hard_ones():
    """Uneven token counts, and ranks that get one micro-batch more of real work than others."""
    for world_size in WORLDS:
        real = []
        for budget, count in CUTS:
            cut = {"token_budget": budget, "world_size": world_size}
            cut |= {"device": torch.device("cpu"), "dtype": torch.float64}
            batches = [pack(random_sequences(count), rank=rank, **cut) for rank in range(world_size)]
            assert len({len(mine) for mine in batches}) == 1
            real.append([sum(bool(batch.indices) for batch in mine) for mine in batches])
            assert len({sum(len(b.tokens_T) for b in mine if b.indices) for mine in batches}) > 1
        assert any(len(set(counts)) > 1 for counts in real), real


def test_bfloat16_with_float32_masters_and_checkpointing_is_near_float64(model, world):
    size, folder = world
    policy = load_tiny(model)
    accumulate(policy, random_sequences(5), "drgrpo", token_budget=30)
    norm = finish_gradients(policy, max_norm=1e9)
    expected = take_gradients(policy)
    for rank in range(size):
        gradient, other_norm = torch.load(folder / f"bfloat16_{rank}.pt", weights_only=True)
        assert {tensor.dtype for tensor in gradient.values()} == {torch.float32}
        assert other_norm == pytest.approx(norm, rel=0.05)
        top = "model.norm.weight"
        cosine = torch.cosine_similarity(gradient[top].double(), expected[top], dim=0)
        assert cosine > 0.99
        assert distance(expected, {name: g.double() for name, g in gradient.items()}) > 1e-4  # it is bfloat16
        # One micro-batch a rank: a sum over ranks in bfloat16 would give bfloat16 numbers.
        assert not all(torch.equal(g, g.bfloat16().float()) for g in gradient.values())


@pytest.mark.parametrize("name", ["saved", "saved_offload"])
def test_a_sharded_policy_is_saved_whole_and_tied(model, world, name):
    _, folder = world
    saved = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
    original = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    assert saved.lm_head.weight is saved.model.embed_tokens.weight
    for (name, left), (_, right) in zip(saved.named_parameters(), original.named_parameters(), strict=True):
        assert torch.equal(left, right), name


@pytest.mark.parametrize("offload", [False, True], ids=["resident", "offloaded"])
def test_fsdp_works_in_one_process_without_torchrun(model, offload):
    """… and a forward pass without a backward one leaves no whole, rounded parameter behind."""
    code = (
        "from pathlib import Path; from torch.distributed.fsdp import FSDPModule\n"
        "from tiny_policy import *; from core.update import finish_gradients\n"
        f"policy = load_tiny(Path({str(model)!r}), 'fsdp', cpu_offload={offload})\n"
        "assert policy.causal_lm.lm_head.weight is policy.causal_lm.model.embed_tokens.weight\n"
        "for module in policy.modules():\n"
        "    if isinstance(module, FSDPModule):\n"  # on a CPU no number tells whether it offloads
        "        for group in module._get_fsdp_state()._fsdp_param_groups:\n"
        f"            assert {{p.offload_to_cpu for p in group.fsdp_params}} == {{{offload}}}\n"
        "accumulate(policy, random_sequences(4), 'drgrpo', token_budget=64)\n"
        "print(finish_gradients(policy, 1e9))\n"
        "from torch.distributed.tensor import DTensor; from test_policy import ADAMW, make_optimiser, pack\n"
        "optimiser = make_optimiser(policy, ADAMW)\n"
        "optimiser.step(1.0)\n"
        "(batch,) = pack(random_sequences(1), token_budget=64, rank=0, world_size=1,\n"
        "                device=policy.device, dtype=torch.float64)\n"
        "with torch.no_grad(): policy_logprobs(policy, batch, temperature=1.0)\n"
        "assert all(isinstance(p, DTensor) for p in policy.parameters())\n"
        "assert optimiser.tensors(policy)\n"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    policy = load_tiny(model)
    accumulate(policy, random_sequences(4), "drgrpo", token_budget=64)
    assert float(done.stdout) == pytest.approx(finish_gradients(policy, 1e9), rel=1e-10)
