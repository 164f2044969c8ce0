"""`--dry-run`: what a run would do and need, found out without doing it."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import torch
from huggingface_hub import constants
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from core.config import ColumnsConfig, Config, PolicyConfig, to_yaml
from core.data import load_problems
from core.errors import UserError
from core.lean.backends import make_verifier
from core.prompts import load_tokenizer, prompt_ids
from core.run import Run

_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}


def dry_run(config: Config, run: Run) -> None:
    """Print the resolved config, what follows from it, and whether model, data and Lean answer.

    What does not answer is listed as needed; only a config that could never run is an error.
    """
    run.print(to_yaml(config))
    use_cache_if_hub_is_silent()
    parameters, source = parameter_count(config.policy)
    table = Table("derived", "value", title=f"{run.experiment} on {run.world_size} process(es)")
    for name, value in derived_quantities(config, run.world_size, parameters).items():
        table.add_row(name, value)
    table.add_row("parameters", f"{parameters:,.0f} ({source})" if parameters else source)
    run.console.print(table)
    missing = 0
    for name, probe in _probes(config, run).items():
        try:
            run.print(f"ok       {name}: {probe()}")
        except UserError as error:
            missing += 1
            run.print(f"MISSING  {name}: {error}")
    run.print(f"{missing} thing(s) missing for a real run" if missing else "ready for a real run")


def use_cache_if_hub_is_silent() -> None:
    """Without an answer from the hub in 5 s, look in its local cache only instead of retrying."""
    try:
        httpx.head(constants.ENDPOINT, timeout=5)
    except httpx.HTTPError:
        constants.HF_HUB_OFFLINE = True


def derived_quantities(config: Config, world_size: int, parameters: float) -> dict[str, str]:
    """Numbers that follow from the config; upper bounds assume that every sequence is as long as allowed."""
    rollouts = config.rollout.prompts * config.rollout.group_size
    updates = config.rollout.prompts // config.loss.prompts_per_update
    longest = config.prompt.max_tokens + config.rollout.max_new_tokens
    per_update = rollouts // updates * longest
    microbatches = -(-per_update // (config.loss.tokens_per_microbatch * world_size))
    fixes = round(config.rollout.prompts * config.error_fix.fraction)
    derived = {
        "prompts a step": f"{config.rollout.prompts - fixes} fresh + {fixes} error-fix",
        "rollouts a step": f"{rollouts:,}",
        "updates a step": f"{updates}",
        "updates in all": f"{updates * config.run.steps:,}",
        "loss normaliser N·L": f"{rollouts // updates} × {config.rollout.max_new_tokens:,}",
        "tokens a step": f"at most {rollouts * longest:,}",
        "accumulation": f"at most {microbatches} micro-batches an update and rank",
    }
    if parameters:
        width = _BYTES[config.policy.dtype]
        sharded = config.policy.sharding == "fsdp"
        state = 3 * max(width, 4) if sharded else 3 * width  # gradient and AdamW's two moments
        weights = max(width, 4) if sharded else width
        training = parameters * (weights + state) / (world_size if sharded else 1)
        engine = parameters * width
        gib = 2**30
        place = " in host memory" if config.policy.cpu_offload else ""
        derived["memory a rank"] = (
            f"{training / gib:.1f} GiB weights, gradients and optimiser{place} + {engine / gib:.1f} GiB "
            "engine's weights; activations and cache come on top"
        )
    return derived


def parameter_count(config: PolicyConfig) -> tuple[float, str]:
    """Parameters of the model and where the number comes from; (0, reason) if there is no telling."""
    try:
        shape = AutoConfig.from_pretrained(config.path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape)
        return float(sum(p.numel() for p in model.parameters())), "from the model's config"
    except (OSError, ValueError):
        named = re.search(r"(\d+(?:\.\d+)?)B\b", config.path)
        if named:
            return 1e9 * float(named[1]), "from the model's name; its config is not at hand"
        return 0.0, f"unknown: no model config at {config.path}"


def _probes(config: Config, run: Run) -> dict[str, Callable[[], str]]:
    def model() -> str:
        tokenizer, eos_ids = load_tokenizer(config.policy.path)
        return f"{config.policy.path}, {len(tokenizer)} tokens, end of sequence {eos_ids}"

    def data(location: str, columns: ColumnsConfig) -> Callable[[], str]:
        return lambda: f"{location}, {len(load_problems(location, columns)):,} problems"

    def prompts() -> str:
        tokenizer, _ = load_tokenizer(config.policy.path)
        problems = load_problems(config.data.heldout, config.data.heldout_columns)
        lengths = [len(prompt_ids(tokenizer, p, config.prompt.style)) for p in problems]
        dropped = sum(length > config.prompt.max_tokens for length in lengths)
        return f"held-out prompts of {min(lengths)} to {max(lengths)} tokens, {dropped} overlong"

    def lean() -> str:
        verifier = make_verifier(config.lean, run.print)
        try:
            sick = verifier.healthy()
        finally:
            verifier.close()
        if sick:
            raise UserError(f"{verifier.name} does not pass its canaries: {sick}")
        limits = ", no Mathlib: what imports it needs another verifier" if verifier.name == "embedded" else ""
        return f"{verifier.name}, canaries pass{limits}"

    def device() -> str:
        if config.policy.attention.startswith("flash") and run.device.type != "cuda":
            raise UserError(f"policy.attention={config.policy.attention} needs a GPU; this machine has none")
        return str(run.device)

    return {
        "model": model,
        "training data": data(config.data.train, config.data.train_columns),
        "held-out data": data(config.data.heldout, config.data.heldout_columns),
        "prompts": prompts,
        "Lean": lean,
        "device": device,
    }
