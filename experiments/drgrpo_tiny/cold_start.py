"""The cold start: supervised fine-tuning of a new, small Qwen3 on demonstrations in the recipe's format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from core.checkpoint import Checkpointer
from core.config import OptimiserConfig, PolicyConfig, RunConfig, to_yaml
from core.errors import UserError
from core.losses.sft import sft_loss
from core.packing import TrainSequence, completion_tokens, pack
from core.policy import load_policy, policy_logprobs, save_policy
from core.prompts import error_fix_prompt_ids, load_tokenizer
from core.run import Run, launch
from core.seeds import derive_seed
from core.update import finish_gradients, make_optimiser, rate_factor, reduce_stats


@dataclass(frozen=True)
class ModelConfig:
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    max_positions: int


@dataclass(frozen=True)
class DemonstrationsConfig:
    file: str  # demonstrations.jsonl of prepare.py
    tokenizer: str  # folder of prepare.py
    sequences_per_update: int
    tokens_per_microbatch: int
    curriculum: float  # share of the updates in which the pool grows from the shortest fifth to all


@dataclass(frozen=True)
class Config:
    run: RunConfig  # run.steps counts updates
    model: ModelConfig
    policy: PolicyConfig  # policy.path: where the new model is put
    demonstrations: DemonstrationsConfig
    optimiser: OptimiserConfig


def new_model(config: ModelConfig, tokenizer: Any, seed: int, folder: Path) -> int:
    """Write a randomly initialised Qwen3 and its tokenizer to `folder`; returns its parameter count."""
    torch.manual_seed(seed)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.head_size,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(shape)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def load_demonstrations(file: str, tokenizer: Any, eos_ids: tuple[int, ...]) -> list[TrainSequence]:
    """Token sequences of demonstrations.jsonl; the last message of each is what is learnt.

    An error-fix demonstration is put together by the same function as in training, so the model meets
    the same ids there.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"demonstrations.file {file}: cannot be read: {error.strerror}") from error

    def ids(texts: list[str]) -> list[tuple[int, ...]]:
        return [tuple(row) for row in tokenizer(texts, add_special_tokens=False).input_ids]

    conversations = [json.loads(line)["messages"] for line in lines]
    openings = tokenizer.apply_chat_template(
        [messages[:1] for messages in conversations], tokenize=False, add_generation_prompt=True
    )
    answers = ids([messages[-1]["content"] for messages in conversations])
    sequences = []
    for messages, prompt, answer in zip(conversations, ids(openings), answers, strict=True):
        if len(messages) == 4:
            attempt = (*ids([messages[1]["content"]])[0], tokenizer.eos_token_id)
            prompt = error_fix_prompt_ids(tokenizer, prompt, attempt, messages[2]["content"], eos_ids)
        target = (*answer, tokenizer.eos_token_id)
        sequences.append(TrainSequence((*prompt, *target), len(prompt), 0.0, (), 1.0))
    return sequences


def draw(sequences: list[TrainSequence], progress: float, update: int, config: Config) -> list[TrainSequence]:
    """The sequences of an update, short ones first: `sequences`, sorted by length, open up with progress.

    A pure function of the seed and the update.
    """
    settings = config.demonstrations
    opened = 1.0 if progress >= settings.curriculum else 0.2 + 0.8 * progress / settings.curriculum
    pool = max(int(opened * len(sequences)), settings.sequences_per_update)
    generator = np.random.default_rng(derive_seed(config.run.seed, "demonstrations", update))
    chosen = generator.choice(pool, settings.sequences_per_update, replace=False)
    return [sequences[index] for index in chosen]


def train(config: Config, run: Run) -> None:
    tokenizer, eos_ids = load_tokenizer(config.demonstrations.tokenizer)
    sequences = load_demonstrations(config.demonstrations.file, tokenizer, eos_ids)
    sequences.sort(key=lambda sequence: len(sequence.token_ids))
    run.open_folder()
    if run.rank == 0:
        seed = derive_seed(config.run.seed, "initialise")
        size = new_model(config.model, tokenizer, seed, Path(config.policy.path))
        run.print(f"a new Qwen3 of {size / 1e6:.2f} M parameters; {len(sequences)} demonstrations")
    run.barrier()
    policy = load_policy(config.policy)
    optimiser = make_optimiser(policy, config.optimiser)
    checkpoint = Checkpointer(run, policy, optimiser, {})
    done = checkpoint.restore() or 0
    with run.phase("cold start", total=config.run.steps) as advance:
        advance(done)
        for update in range(done, config.run.steps):
            batch = draw(sequences, update / config.run.steps, update, config)
            normaliser = completion_tokens(batch)
            stats = []
            for microbatch in pack(
                batch,
                token_budget=config.demonstrations.tokens_per_microbatch,
                rank=run.rank,
                world_size=run.world_size,
                device=policy.device,
                dtype=policy.logprob_dtype,
            ):
                logprobs_C, _ = policy_logprobs(policy, microbatch, temperature=1.0, entropy=False)
                loss, stat = sft_loss(
                    logprobs_C, microbatch.mask_C, microbatch.weights_C, normaliser=normaliser
                )
                loss.backward()
                stats.append(stat)
            norm = finish_gradients(policy, config.optimiser.max_grad_norm)
            optimiser.step(rate_factor(config.optimiser, update, config.run.steps))
            metrics = reduce_stats(stats) | {"update/grad_norm": norm}
            if (update + 1) % 100 == 0:
                run.print(f"update {update + 1:>5} | loss {metrics['policy/nll/mean']:.3f}")
            run.log(update + 1, metrics)
            advance(1)
            checkpoint.save(update + 1, best=None)
            if run.stopping:
                return
    save_policy(policy, tokenizer, Path(config.policy.path))
    run.print(f"policy: {config.policy.path}")


def dry_run(config: Config, run: Run) -> None:
    """Print the resolved config and check that the demonstrations can be read."""
    run.print(to_yaml(config))
    tokenizer, eos_ids = load_tokenizer(config.demonstrations.tokenizer)
    sequences = load_demonstrations(config.demonstrations.file, tokenizer, eos_ids)
    run.print(f"{len(sequences):,} demonstrations, {completion_tokens(sequences):,} tokens to learn")


if __name__ == "__main__":
    launch(Config, Path(__file__).with_name("cold_start.yaml"), train, dry_run)
