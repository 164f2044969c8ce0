"""Configuration: config.yaml and key=value overrides, checked against a schema, as one frozen object.

Every value stands in an experiment's config.yaml; nothing has a default in Python. An experiment that
exposes more choices extends `Config` in its own train.py.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from core.errors import UserError
from core.format_checks.thresholds import FormatThresholds

C = TypeVar("C")


@dataclass(frozen=True)
class RunConfig:
    folder: str  # everything the run writes
    # Of the folder's earlier run: go on with it (resume_changed: with another config too) or delete it.
    on_existing: Literal["resume", "resume_changed", "refuse", "replace"]
    seed: int
    steps: int
    save_every: int  # steps between saved policies; 0: only the last
    checkpoint_every: int  # steps between checkpoints
    keep_last: int  # newest checkpoints kept; the best by held-out pass@1 is kept as well
    grace_s: float  # from SIGTERM to the exit with code 0; a step that takes longer is abandoned
    wandb: Literal["auto", "online", "offline", "disabled"]  # auto: online when logged in, else offline
    threads: int  # torch threads a process; 0: torch's own choice
    timeout_minutes: float  # a rank that waits longer for the others ends the job


@dataclass(frozen=True)
class ColumnsConfig:
    name: str
    statement: str
    header: str | None  # null: the file has no such column
    informal: str | None
    source: str | None
    difficulty: str | None


@dataclass(frozen=True)
class DataConfig:
    train: str  # .jsonl or .parquet file, a folder of them, or a hub data set "hf://owner/name"
    heldout: str
    train_columns: ColumnsConfig
    heldout_columns: ColumnsConfig


@dataclass(frozen=True)
class PromptConfig:
    style: Literal["kimina", "compact", "statement"]  # kimina: the recipe's wording
    max_tokens: int  # longer prompts are left out, never cut


@dataclass(frozen=True)
class PolicyConfig:
    path: str  # Hugging Face folder, or the name of a hub model
    dtype: Literal["bfloat16", "float32", "float64"]
    attention: str  # transformers' attention implementation for the packed forward pass
    sharding: Literal["none", "ddp", "fsdp"]  # none: one process
    cpu_offload: bool  # parameters, gradients and optimiser state in host memory; fsdp alone
    activation_checkpointing: bool
    compile: bool


@dataclass(frozen=True)
class RolloutConfig:
    engine: Literal["auto", "vllm", "transformers"]  # auto: vllm on a GPU, else transformers
    prompts: int  # prompts a step, over all ranks
    group_size: int  # rollouts a prompt
    max_new_tokens: int  # the response limit
    temperature: float
    top_p: float
    stop: list[str]  # texts that end a completion, beside the end-of-turn tokens; they stay in it
    loop_at: int | None  # a completion that ends in so many copies of one piece is ended; null: never
    token_budget: int | None  # new tokens a step, over all ranks; null: every rollout is sampled to its end
    stale_weight: float  # largest importance weight of a token that an older policy sampled; 0: masked
    check_every: int  # steps between proofs that engine and trainer agree; 0: before the first rollout only
    max_logprob_gap: float  # nats by which they may differ in a proof
    kv_cache_gib: float  # vLLM's keys and values, a rank
    tensor_parallel: int  # ranks that share one vLLM engine
    max_rows: int  # sequences decoded at once, a rank


@dataclass(frozen=True)
class LeanConfig:
    backend: Literal["auto", "kimina", "local", "embedded"]
    servers: list[str] | None  # addresses of Kimina servers; null: LEAN_SERVER_API_URL
    server_slots: int  # requests in flight a server and rank; times ranks at most its REPLs
    project: str | None  # the local backend's Lake project
    repl: str | None  # the community REPL's binary for it; null: `lake env lean --json`
    recycle_after: int  # checks after which a local Lean process is replaced
    workers: int  # Lean processes, a rank
    batch_size: int  # proofs a Lean process reads at once
    timeout_s: float  # wall clock a proof
    memory_mb: int
    max_output_bytes: int
    cache_entries: int
    retry_s: float  # pause between canaries while Lean does not answer


@dataclass(frozen=True)
class ErrorFixConfig:
    fraction: float  # of a step's prompts that come from the cache
    cache_size: int  # newest failed attempts kept
    only_solved_groups: bool  # attempts at a problem that no sample of their group solved stay out
    max_errors: int  # errors shown
    context_lines: int  # code lines before and after the faulty one
    max_characters: int  # of feedback
    max_tokens: int | None  # of feedback as well; null: characters alone
    overlong: Literal["drop", "cut"]  # what happens to feedback beyond that


@dataclass(frozen=True)
class LossConfig:
    clip_low: float
    clip_high: float
    dual_clip: float | None
    prompts_per_update: int  # a mini-batch of one optimiser update
    tokens_per_microbatch: int  # packed tokens a forward pass, a rank


@dataclass(frozen=True)
class OptimiserConfig:
    name: Literal["adamw", "muon"]  # muon: matrices by Muon, the rest by AdamW
    learning_rate: float
    matrix_learning_rate: float | None  # Muon's
    temperature_learning_rate: float | None  # of the gain before the head; null: as the rest
    weight_decay: float
    beta1: float
    beta2: float
    max_grad_norm: float
    schedule: Literal["constant", "linear"]  # linear: to zero
    warmup_updates: int


@dataclass(frozen=True)
class EvaluateConfig:
    every: int  # steps; 0: only before the first and after the last
    problems: int  # held-out problems used before and after training
    quick_problems: int  # held-out problems used in between
    samples: int  # completions a problem
    temperature: float
    top_p: float
    error_fix: bool  # also give failed attempts one error-fix turn


@dataclass(frozen=True)
class GuardConfig:
    limit: float
    steps: int  # in a row beyond the limit before it acts
    action: Literal["stop", "pause", "warn", "ignore"]


@dataclass(frozen=True)
class GuardsConfig:
    """Bounds of a run's own metrics. A loss or gradient that is not finite always stops the run."""

    grad_norm: GuardConfig  # norm before clipping, above
    reward_drop: GuardConfig  # mean reward of the last `steps`, as a share of the best so far, below
    useful: GuardConfig  # share of rollouts with an advantage, at most
    length: GuardConfig  # mean completion tokens, below
    malformed: GuardConfig  # share of rollouts that fail a format check, above
    unknown: GuardConfig  # share of rollouts without a verdict, above
    logprob_gap: GuardConfig  # mean |sampler − trainer| in nats, above


@dataclass(frozen=True)
class Config:
    run: RunConfig
    data: DataConfig
    prompt: PromptConfig
    policy: PolicyConfig
    rollout: RolloutConfig
    format: FormatThresholds
    lean: LeanConfig
    error_fix: ErrorFixConfig
    loss: LossConfig
    optimiser: OptimiserConfig
    evaluate: EvaluateConfig
    guards: GuardsConfig


def parse_arguments(schema: type[C], yaml_file: Path, argv: Sequence[str]) -> tuple[C, bool]:
    """The command line of every experiment: `[--config FILE] [--dry-run] [key=value …]`.

    Raises UserError for whatever is wrong with the configuration.
    """
    parser = argparse.ArgumentParser(description="overrides: section.key=value")
    parser.add_argument("--config", type=Path, default=yaml_file, help="the YAML file to start from")
    parser.add_argument("--dry-run", action="store_true", help="validate and print, then exit")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args(argv)
    config = load_config(schema, arguments.config, arguments.overrides)
    check_every_key_is_read(schema, yaml_file.parent)
    if isinstance(config, Config):
        check_config(config)
    return config, arguments.dry_run


def load_config(schema: type[C], yaml_file: Path, overrides: Sequence[str]) -> C:
    """Merge `yaml_file` and `overrides` into `schema`, a frozen dataclass of frozen dataclasses.

    Raises UserError for an unreadable file and for unknown, missing and mistyped keys.
    """
    try:
        values = OmegaConf.load(yaml_file)
        if not isinstance(values, DictConfig):
            raise UserError(f"{yaml_file}: expected sections with keys, found a list")
        layers = [OmegaConf.structured(schema), values]
        for override in overrides:
            if "=" not in override:
                raise UserError(f"override {override!r}: expected section.key=value")
            layers.append(OmegaConf.from_dotlist([override]))
        merged = OmegaConf.merge(*layers)
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise UserError(f"{yaml_file}: missing {', '.join(missing)}")
        return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or getattr(error, "key", None) or "?"
        reason = str(error).splitlines()[0]
        raise UserError(f"{yaml_file}, key {key}: {reason}") from error
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{yaml_file}: cannot be read as YAML: {error}") from error


def check_every_key_is_read(schema: type, experiment_folder: Path) -> None:
    """Raise UserError for a key of `schema` that no code of core/ or of the experiment reads."""
    core_folder = Path(__file__).parent
    files = [*core_folder.rglob("*.py"), *experiment_folder.glob("*.py")]
    read = {
        node.attr
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for key, _ in _leaves(schema):
        if key.split(".")[-1] not in read:
            raise UserError(f"key {key} is read nowhere in core/ or {experiment_folder.name}/: delete it")


def _leaves(schema: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _leaves(kind, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            yield prefix + field.name, kind


def check_config(config: Config) -> None:
    """Raise UserError for values that contradict each other."""
    rollout, loss, run, held = config.rollout, config.loss, config.run, config.evaluate
    fraction = config.error_fix.fraction
    longest = config.prompt.max_tokens + rollout.max_new_tokens
    rules = (
        (run.steps >= 1, f"run.steps={run.steps}: a run of no steps; must be at least 1"),
        (run.checkpoint_every >= 1, f"run.checkpoint_every={run.checkpoint_every}: must be at least 1"),
        (run.keep_last >= 1, f"run.keep_last={run.keep_last}: must be at least 1"),
        (0 <= fraction <= 1, f"error_fix.fraction={fraction}: must be between 0 and 1"),
        (
            loss.prompts_per_update >= 1 and rollout.prompts % loss.prompts_per_update == 0,
            f"rollout.prompts={rollout.prompts} is no multiple of "
            f"loss.prompts_per_update={loss.prompts_per_update}: every update needs as many prompts",
        ),
        (
            rollout.group_size >= 2,
            f"rollout.group_size={rollout.group_size}: a group of one has no baseline; at least 2",
        ),
        (
            loss.tokens_per_microbatch >= longest,
            f"loss.tokens_per_microbatch={loss.tokens_per_microbatch} cannot hold one sequence of "
            f"prompt.max_tokens + rollout.max_new_tokens = {longest}",
        ),
        (rollout.temperature > 0, f"rollout.temperature={rollout.temperature}: must be above 0"),
        (
            rollout.token_budget is None or rollout.token_budget >= rollout.prompts * rollout.group_size,
            f"rollout.token_budget={rollout.token_budget}: at least a token for each of a step's rollouts",
        ),
        (
            rollout.loop_at is None or rollout.loop_at >= 2,
            f"rollout.loop_at={rollout.loop_at}: a loop has two copies at least; null turns it off",
        ),
        (
            rollout.top_p == 1.0,
            f"rollout.top_p={rollout.top_p}: must be 1.0; the loss's log-probs know no nucleus",
        ),
        (held.samples >= 1, f"evaluate.samples={held.samples}: must be at least 1"),
        (held.problems >= 1, f"evaluate.problems={held.problems}: must be at least 1"),
    )
    for holds, message in rules:
        if not holds:
            raise UserError(message)


def to_dict(config: Any) -> dict[str, Any]:
    """`config` as nested plain values."""
    return dataclasses.asdict(config)


def to_yaml(config: Any) -> str:
    """`config` as YAML text in the schema's order."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


# Keys that do not change what is learnt: a run folder may be continued or compared across them.
_NOT_HASHED = (
    *("folder", "on_existing", "save_every", "checkpoint_every", "keep_last", "grace_s"),
    *("wandb", "threads", "timeout_minutes"),
)


def config_hash(config: Any) -> str:
    """A short hash of every value that changes the numbers of a run."""
    text = json.dumps(numbers_of(to_dict(config)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def numbers_of(plain: dict[str, Any]) -> dict[str, Any]:
    """The values that change a run's numbers, of a configuration as nested plain values."""
    plain = {section: values for section, values in plain.items() if section != "guards"}
    return plain | {"run": {key: value for key, value in plain["run"].items() if key not in _NOT_HASHED}}
