"""The policy: a causal language model loaded, cut over ranks, asked for log-probs, read out and saved.

Shapes: T packed tokens of a micro-batch, C its completion tokens, H hidden size.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from core.attention import PackedLayout
from core.errors import UserError
from core.losses.logprobs import selected_logprobs
from core.packing import MicroBatch

if TYPE_CHECKING:
    from core.config import PolicyConfig

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


class ExactNorm(Qwen3RMSNorm):
    """For float64: transformers' norm rounds to float32 in the middle, and with it every gradient."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


def make_norms_exact(causal_lm: nn.Module) -> None:
    for module in causal_lm.modules():
        if isinstance(module, Qwen3RMSNorm):
            module.__class__ = ExactNorm


class Policy(nn.Module):
    """A Hugging Face causal language model whose forward pass gives log-probs, not logits."""

    def __init__(self, causal_lm: Any, *, device: torch.device, replicated: bool) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.device = device
        """Where it computes; with `cpu_offload` its parameters rest elsewhere."""
        self.replicated = replicated
        """Every rank holds all parameters and `finish_gradients` has to sum their gradients."""

    @property
    def logprob_dtype(self) -> torch.dtype:
        """float32, or float64 for a float64 model: what losses are computed in."""
        return torch.promote_types(next(self.parameters()).dtype, torch.float32)

    def forward(
        self, microbatch: MicroBatch, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        hidden_1TH = self.causal_lm.model(
            input_ids=microbatch.tokens_T[None],
            position_ids=microbatch.positions_T[None],
            attention_mask=None,
            use_cache=False,
            layout=PackedLayout.of(microbatch.spans, microbatch.tokens_T.device),
        ).last_hidden_state
        hidden_CH = hidden_1TH[0].index_select(0, microbatch.source_C)
        head_VH = self.causal_lm.lm_head.weight
        return selected_logprobs(
            hidden_CH, head_VH, microbatch.targets_C, temperature=temperature, entropy=entropy
        )


def policy_logprobs(
    policy: Policy, microbatch: MicroBatch, *, temperature: float, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log π(token) of the micro-batch's completion tokens at the sampling temperature, and the entropies of
    their distributions if asked for: two tensors [C], in nats, differentiable."""
    found = policy(microbatch, temperature, entropy)
    if isinstance(policy, FSDPModule) and not torch.is_grad_enabled():
        policy.reshard()  # no backward pass will: the embedding would stay whole and rounded, for all to see
    return found


@torch.no_grad()
def old_logprobs(
    policy: Policy, packed: Sequence[Sequence[MicroBatch]], *, temperature: float
) -> list[list[Tensor | None]]:
    """log π(token) before a step's first update, for each micro-batch of each of its mini-batches.

    None for the first mini-batch: it is on-policy, so its old log-probs are its own, detached, and a
    step of a single update needs no second forward pass.
    """
    old: list[list[Tensor | None]] = [[None for _ in microbatches] for microbatches in packed[:1]]
    for microbatches in packed[1:]:
        later = (policy_logprobs(policy, m, temperature=temperature, entropy=False) for m in microbatches)
        old.append([logprobs_C for logprobs_C, _ in later])
    return old


def load_policy(config: PolicyConfig) -> Policy:
    """The model in folder `config.path`, on this rank's device, cut as `config.sharding` says.

    Gradients are always *summed* over ranks, never averaged, so losses carry no factor for their number
    (D = 1), and a step has the same numbers for any number of processes:
    - "none": one process.
    - "ddp": every rank holds all parameters; `finish_gradients` sums their gradients, once an update.
    - "fsdp": FSDP2; parameters are kept in float32 (float64 if that is the dtype), gathered and computed with
      in `config.dtype`; gradients are reduced in float32. With `config.cpu_offload` parameters, gradients and
      the optimiser with its arithmetic are in host memory: slower, for models that a card cannot hold.
    """
    _check(config)
    try:
        causal_lm = AutoModelForCausalLM.from_pretrained(
            config.path,
            dtype=_storage_dtype(config),
            attn_implementation=config.attention,
            use_safetensors=True,  # nothing is ever unpickled
        )
    except (OSError, ValueError) as error:  # no such folder or model; no such attention
        reason = str(error).splitlines()[0]
        raise UserError(f"policy.path {config.path}: the model cannot be loaded: {reason}") from error
    return prepare_policy(causal_lm, config)


def _check(config: PolicyConfig) -> None:
    if config.dtype not in DTYPES:
        raise UserError(f"policy.dtype {config.dtype!r}: expected one of {', '.join(DTYPES)}")
    if config.sharding not in ("none", "ddp", "fsdp"):
        raise UserError(f"policy.sharding {config.sharding!r}: expected none, ddp or fsdp")
    if config.sharding == "none" and _world_size() > 1:
        raise UserError(f"policy.sharding none with {_world_size()} processes: use ddp or fsdp")
    if config.cpu_offload and config.sharding != "fsdp":
        raise UserError(f"policy.cpu_offload with policy.sharding {config.sharding}: only fsdp can offload")


def _storage_dtype(config: PolicyConfig) -> torch.dtype:
    compute = DTYPES[config.dtype]
    return torch.promote_types(compute, torch.float32) if config.sharding == "fsdp" else compute


def prepare_policy(causal_lm: Any, config: PolicyConfig) -> Policy:
    """`load_policy` for a model that is already in memory, in the dtype its parameters are to be kept in."""
    if config.activation_checkpointing:
        causal_lm.activation_checkpointing_enable({"use_reentrant": False})
    causal_lm.train()
    if config.dtype == "float64":
        make_norms_exact(causal_lm)
    if config.compile:
        for layer in causal_lm.model.layers:
            layer.compile(dynamic=True)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    policy = Policy(causal_lm, device=device, replicated=config.sharding == "ddp").to(device)
    if config.sharding == "fsdp":
        _shard(policy, DTYPES[config.dtype], config.cpu_offload)
    return policy


def _shard(policy: Policy, compute: torch.dtype, cpu_offload: bool) -> None:
    on_gpu = policy.device.type == "cuda"
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"  # gloo: for the norm of offloaded gradients
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    tied = policy.causal_lm.config.tie_word_embeddings
    mesh = init_device_mesh(policy.device.type, (dist.get_world_size(),))
    reduce = torch.promote_types(compute, torch.float32)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
    offload = CPUOffloadPolicy(pin_memory=on_gpu) if cpu_offload else OffloadPolicy()
    for module in [*policy.causal_lm.model.layers, policy]:
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
    for module in policy.modules():
        if isinstance(module, FSDPModule):  # sums, as losses are scaled for the whole update
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    causal_lm = policy.causal_lm
    assert not tied or causal_lm.lm_head.weight is causal_lm.model.embed_tokens.weight, (
        "sharding untied the head from the embedding"
    )


def full_parameters(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """(name in the Hugging Face model, whole tensor on its device) of every parameter, one at a time.

    A tied head comes once, as the embedding. Under fsdp to be consumed on every rank.
    """
    for name, parameter in policy.causal_lm.named_parameters():
        part = parameter.detach().to(policy.device)  # elsewhere if offloaded, and gathered where it computes
        yield name, part.full_tensor() if isinstance(part, DTensor) else part


def save_policy(policy: Policy, tokenizer: Any, folder: Path, *, must: bool = True) -> None:
    """Write the model (safetensors, in its parameters' dtype) and tokenizer as a Hugging Face folder.

    To be called on every rank; the first writes and all return when `folder` is complete. An interrupted
    write leaves no half-written `folder`. What a full disk refuses is an error, or told if not `must`.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    state = {name: tensor.to("cpu", copy=True) for name, tensor in full_parameters(policy) if first}
    if first:
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            policy.causal_lm.save_pretrained(partial, state_dict=state)
            tokenizer.save_pretrained(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if must:
                raise
            print(f"WARNING: {folder} is not saved: {error}", file=sys.stderr)
    if dist.is_initialized():
        dist.barrier()


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
