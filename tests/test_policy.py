"""The policy and its update: options that change no number, parameters out, optimisers, rates, the guard."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from tiny_policy import accumulate, distance, load_tiny, random_sequences, take_gradients, write_model
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from core.config import OptimiserConfig, PolicyConfig
from core.errors import UserError
from core.muon import Muon
from core.packing import pack
from core.policy import (
    ExactNorm,
    full_parameters,
    load_policy,
    make_norms_exact,
    old_logprobs,
    policy_logprobs,
    save_policy,
)
from core.update import (
    NonFinite,
    finish_gradients,
    guard_finite,
    make_optimiser,
    rate_factor,
    reduce_stats,
)

ADAMW = OptimiserConfig("adamw", 1.0e-2, None, None, 0.1, 0.9, 0.95, 1.0, "constant", 0)
ALL = {"token_budget": 999, "rank": 0, "world_size": 1}
CPU64 = {"device": torch.device("cpu"), "dtype": torch.float64}


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), tied=request.param)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tied"))


def gradients(policy) -> dict[str, torch.Tensor]:
    accumulate(policy, random_sequences(6), "drgrpo + k3 + entropy", token_budget=40)
    return take_gradients(policy)


def test_logprobs_are_transformers_own(folder):
    """Against the model's own logits, one unpacked sequence at a time; its norms do not round here."""
    policy = load_tiny(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    make_norms_exact(reference)
    sequences = random_sequences(5)
    (batch,) = pack(sequences, **ALL, **CPU64)
    logprobs_C, entropy_C = policy_logprobs(policy, batch, temperature=0.6, entropy=True)
    assert entropy_C is not None
    for number, one in enumerate(sequences):
        logits = reference(torch.tensor([one.token_ids])).logits[0] / 0.6
        expected = torch.log_softmax(logits, -1)[one.prompt_length - 1 : -1]
        chosen = expected.gather(1, torch.tensor(one.token_ids[one.prompt_length :])[:, None])[:, 0]
        mine = batch.sequence_C == number
        torch.testing.assert_close(logprobs_C[mine], chosen, rtol=1e-10, atol=1e-10)
        entropy = torch.distributions.Categorical(logits=expected).entropy()
        torch.testing.assert_close(entropy_C[mine], entropy, rtol=1e-8, atol=1e-10)


def test_the_norm_of_float64_is_transformers_own_without_its_rounding():
    own = Qwen3RMSNorm(8, eps=1e-3)
    torch.nn.init.uniform_(own.weight)
    exact = copy.deepcopy(own)
    exact.__class__ = ExactNorm
    hidden = torch.randn(5, 8)
    torch.testing.assert_close(exact(hidden), own(hidden), rtol=1e-6, atol=1e-6)
    hidden = hidden.double()
    expected = own.weight.double() * hidden / (hidden.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(exact.double()(hidden), expected, rtol=1e-14, atol=1e-14)


def test_the_gradient_is_the_losss_slope(tied):
    """Central differences in a random direction of all parameters."""
    policy = load_tiny(tied)
    sequences = random_sequences(4)
    (batch,) = pack(sequences, **ALL, **CPU64)
    old_C, _ = policy_logprobs(policy, batch, temperature=1.0, entropy=False)
    old_C = old_C.detach()

    def value() -> torch.Tensor:
        logprobs_C, entropy_C = policy_logprobs(policy, batch, temperature=1.0, entropy=True)
        assert entropy_C is not None
        ratio_C = torch.exp(logprobs_C - old_C)  # smooth: no clip
        return (batch.weights_C * batch.advantages_C * ratio_C + 0.1 * entropy_C).sum()

    value().backward()
    torch.manual_seed(0)
    direction = [torch.randn_like(p) for p in policy.parameters()]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(policy.parameters(), direction, strict=True))
    step = 1e-6
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(policy.parameters(), direction, strict=True):
                p.add_(d, alpha=sign * step)
            ends.append(float(value()))
            for p, d in zip(policy.parameters(), direction, strict=True):
                p.add_(d, alpha=-sign * step)
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-7)


def kept_numbers(policy) -> int:
    """How many numbers a forward pass keeps for its backward pass, parameters aside."""
    parameters = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 8
        return tensor

    (batch,) = pack(random_sequences(6), **ALL, **CPU64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = policy_logprobs(policy, batch, temperature=1.0, entropy=False)
    assert result[0].requires_grad
    return sum(size for place, size in kept.items() if place not in parameters)


def test_activation_checkpointing_and_the_chunked_head_change_no_gradient(folder, monkeypatch):
    expected, kept = gradients(load_tiny(folder)), kept_numbers(load_tiny(folder))
    checkpointed = load_tiny(folder, activation_checkpointing=True)
    assert distance(expected, gradients(checkpointed)) < 1e-12
    assert kept_numbers(checkpointed) < 0.5 * kept
    monkeypatch.setattr("core.losses.logprobs.NAIVE_UP_TO", 0)
    monkeypatch.setattr("core.losses.logprobs.CHUNKS", {"cpu": (7, 20)})
    assert distance(expected, gradients(load_tiny(folder))) < 1e-10


def test_transformers_own_attention_sees_the_packing_too(tied):
    """attention: sdpa, by the masks that transformers derives from the positions."""
    assert distance(gradients(load_tiny(tied)), gradients(load_tiny(tied, attention="sdpa"))) < 1e-9


@pytest.mark.slow
def test_compiled_layers_give_the_same_gradient(tied):
    expected = gradients(load_tiny(tied))
    counters.clear()
    assert distance(expected, gradients(load_tiny(tied, compile=True))) < 1e-6  # norms fuse in float32
    assert counters["stats"]["unique_graphs"] >= 1


def test_old_logprobs_are_computed_only_where_needed(tied):
    policy = load_tiny(tied)
    updates = [
        pack(random_sequences(5, seed), token_budget=30, rank=0, world_size=1, **CPU64) for seed in (0, 1)
    ]
    first, second = old_logprobs(policy, updates, temperature=0.9)
    assert first == [None] * len(updates[0])
    for batch, old_C in zip(updates[1], second, strict=True):
        expected_C, _ = policy_logprobs(policy, batch, temperature=0.9, entropy=False)
        assert old_C is not None
        assert not old_C.requires_grad
        assert torch.equal(old_C, expected_C)
    assert old_logprobs(policy, updates[:1], temperature=0.9) == [first]


def test_parameters_come_out_under_hugging_face_names(folder):
    policy = load_tiny(folder, dtype="float32")
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = dict(full_parameters(policy))
    assert ours.keys() == dict(reference.named_parameters()).keys()
    for name, parameter in reference.named_parameters():
        assert torch.equal(ours[name], parameter), name
    assert not any(tensor.requires_grad for tensor in ours.values())


def test_a_saved_policy_is_the_policy(folder, tmp_path):
    policy = load_tiny(folder)
    accumulate(policy, random_sequences(5), "sft", token_budget=999)
    make_optimiser(policy, ADAMW).step(1.0)
    target = tmp_path / "policy"
    target.mkdir()
    (target / "old").write_text("an earlier save")
    save_policy(policy, NoTokenizer(), target)
    assert not (target / "old").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"policy"}
    assert (target / "model.safetensors").exists()
    again = load_tiny(target)
    for (name, left), (_, right) in zip(full_parameters(policy), full_parameters(again), strict=True):
        assert torch.equal(left, right), name
    tied = policy.causal_lm.config.tie_word_embeddings
    assert (again.causal_lm.lm_head.weight is again.causal_lm.model.embed_tokens.weight) == tied


def test_adamw_by_hand(tied):
    """First step: a parameter moves by lr · g/|g| (bias-corrected moments); decay first, norms spared."""
    policy = load_tiny(tied)
    before = {name: tensor.clone() for name, tensor in full_parameters(policy)}
    accumulate(policy, random_sequences(5), "sft", token_budget=999)
    gradient = {name: p.grad.clone() for name, p in policy.causal_lm.named_parameters()}  # type: ignore[union-attr]
    make_optimiser(policy, ADAMW).step(0.5)
    for name, after in full_parameters(policy):
        decay = 1 - 0.005 * 0.1 if after.ndim == 2 else 1.0
        expected = before[name] * decay - 0.005 * gradient[name] / (gradient[name].abs() + 1e-8)
        torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-12)
    assert all(p.grad is None for p in policy.parameters())


def test_muon_takes_the_layers_matrices_alone(tied):
    policy = load_tiny(tied)
    config = dataclasses.replace(ADAMW, name="muon", matrix_learning_rate=0.02, weight_decay=0.0)
    optimiser = make_optimiser(policy, config)
    before = {name: tensor.clone() for name, tensor in full_parameters(policy)}
    accumulate(policy, random_sequences(5), "sft", token_budget=999)
    optimiser.step(1.0)
    for name, after in full_parameters(policy):
        moved = after - before[name]
        if after.ndim == 2 and ".layers." in name:
            # lr · √max(1, rows/columns) · (nearly orthogonal): singular values 0.7 to 1.3 times that.
            values = torch.linalg.svdvals(moved) / (0.02 * max(1, after.shape[0] / after.shape[1]) ** 0.5)
            assert 0.5 < float(values.median()) < 1.4, name
        else:
            assert float(moved.abs().max()) <= 0.0101, name
    with pytest.raises(UserError, match="matrix_learning_rate"):
        make_optimiser(policy, dataclasses.replace(config, matrix_learning_rate=None))
    with pytest.raises(UserError, match="expected adamw or muon"):
        make_optimiser(policy, dataclasses.replace(config, name="sgd"))


def test_muon_moves_as_torchs_does_up_to_bfloat16():
    """Wide, tall and square matrices, two of a shape, one without a gradient; three updates with decay."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 24), (24, 8), (8, 24), (16, 16), (8, 8)]
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    ours, theirs = ([nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    optimisers = (
        Muon(ours, lr=0.02, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1),
    )
    for _ in range(3):
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):
            one.grad = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            other.grad = one.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for one, other, before in zip(ours[:-1], theirs[:-1], start[:-1], strict=True):
        assert float((one - other).detach().norm() / (other - before).detach().norm()) < 0.03
    assert torch.equal(ours[-1].detach(), start[-1])


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_gain_before_the_head_can_have_its_own_rate(tied, name):
    policy = load_tiny(tied)
    config = dataclasses.replace(ADAMW, name=name, matrix_learning_rate=0.02, temperature_learning_rate=0.3)
    optimiser = make_optimiser(policy, config)
    before = {name: tensor.clone() for name, tensor in full_parameters(policy)}
    accumulate(policy, random_sequences(5), "sft", token_budget=999)
    optimiser.step(0.5)
    for parameter, after in full_parameters(policy):  # Adam's first step has the length of its rate
        moved = (after - before[parameter]).abs()
        if parameter == "model.norm.weight":
            torch.testing.assert_close(moved, torch.full_like(moved, 0.15), rtol=1e-4, atol=0.0)
        elif after.ndim == 1:
            assert float(moved.max()) <= 0.0051, parameter


def test_optimiser_state_round_trip(tied, tmp_path):
    """Two updates in a row, and one, a save, a load and another, give the same parameters."""
    config = dataclasses.replace(ADAMW, name="muon", matrix_learning_rate=0.02)

    def update(policy, optimiser, seed: int) -> None:
        accumulate(policy, random_sequences(5, seed), "drgrpo", token_budget=999)
        optimiser.step(1.0)

    straight = load_tiny(tied)
    optimiser = make_optimiser(straight, config)
    update(straight, optimiser, 0)
    save_policy(straight, NoTokenizer(), tmp_path / "policy")
    saved = {name: tensor.clone() for name, tensor in optimiser.tensors(straight).items()}
    update(straight, optimiser, 1)
    resumed = load_tiny(tmp_path / "policy")
    optimiser = make_optimiser(resumed, config)
    state = optimiser.tensors(resumed)
    assert state.keys() == saved.keys()
    for quantity, tensor in state.items():
        tensor.copy_(saved[quantity])
    update(resumed, optimiser, 1)
    assert distance(dict(full_parameters(straight)), dict(full_parameters(resumed))) == 0


def test_gradients_are_clipped_to_the_global_norm(tied):
    policy = load_tiny(tied)
    accumulate(policy, random_sequences(5), "sft", token_budget=999)
    whole = math.sqrt(sum(float(p.grad.square().sum()) for p in policy.parameters()))  # type: ignore[union-attr]
    assert finish_gradients(policy, max_norm=whole / 4) == pytest.approx(whole)
    clipped = math.sqrt(sum(float(p.grad.square().sum()) for p in policy.parameters()))  # type: ignore[union-attr]
    assert clipped == pytest.approx(whole / 4, rel=1e-5)
    assert finish_gradients(policy, max_norm=whole) == pytest.approx(clipped)
    unclipped = math.sqrt(sum(float(p.grad.square().sum()) for p in policy.parameters()))  # type: ignore[union-attr]
    assert unclipped == pytest.approx(clipped)


def test_the_printed_sequence_of_rates():
    def rates(schedule: str, warmup: int) -> list[float]:
        config = dataclasses.replace(ADAMW, schedule=schedule, warmup_updates=warmup)
        return [rate_factor(config, update, 6) for update in range(6)]

    assert rates("constant", 0) == [1.0] * 6
    assert rates("constant", 4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates("linear", 0) == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert rates("linear", 2) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])
    assert rates("linear", 9) == pytest.approx([n / 9 for n in range(1, 7)])
    assert min(rates("linear", 2)) > 0
    with pytest.raises(UserError, match="constant or linear"):
        rates("cosine", 0)


def test_the_rate_reaches_the_optimiser_once_an_update(tied):
    optimiser = make_optimiser(load_tiny(tied), ADAMW)
    for factor in (0.25, 0.5, 1.0):
        optimiser.step(factor)
        assert {group["lr"] for group in optimiser.optimisers[0].param_groups} == {0.01 * factor}


def test_metrics_are_over_the_update_not_its_last_micro_batch():
    def part(tokens: float, loss: float, clipped: float, ratio: float) -> dict[str, torch.Tensor]:
        return {
            "tokens/sum": torch.tensor(tokens),
            "loss/policy/sum": torch.tensor(loss),
            "policy/clip_fraction_low/mean": torch.tensor(clipped),
            "policy/ratio/max": torch.tensor(ratio),
        }

    metrics = reduce_stats([part(3, 0.5, 3, 1.5), part(1, 0.25, 0, 1.25)])
    assert metrics == {
        "tokens/sum": 4,
        "loss/policy/sum": 0.75,
        "policy/clip_fraction_low/mean": 0.75,
        "policy/ratio/max": 1.5,
    }


@pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.inf)])
def test_a_non_finite_update_stops_the_run_and_leaves_its_batch(values, tmp_path):
    batches = pack(random_sequences(3), token_budget=30, rank=0, world_size=1, **CPU64)
    guard_finite(0.5, 1.0, batches, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    with pytest.raises(NonFinite, match=r"non_finite_rank0\.pt"):
        guard_finite(*values, batches, tmp_path / "bad")
    saved = torch.load(tmp_path / "bad" / "non_finite_rank0.pt", weights_only=True)
    assert [entry["tokens_T"].tolist() for entry in saved] == [one.tokens_T.tolist() for one in batches]


def test_bad_settings_are_named(tied, tmp_path):
    good = PolicyConfig(str(tied), "float32", "packed", "none", False, False, False)
    for change, message in (
        ({"dtype": "float16"}, r"policy\.dtype 'float16'.*bfloat16"),
        ({"sharding": "zero"}, r"policy\.sharding 'zero'.*fsdp"),
        ({"cpu_offload": True}, r"policy\.cpu_offload with policy\.sharding none.*fsdp"),
        ({"path": str(tmp_path)}, r"policy\.path .*cannot be loaded"),
    ):
        with pytest.raises(UserError, match=message):
            load_policy(dataclasses.replace(good, **change))
