"""A training step of randomly initialised Qwen3 on one GPU, by phase, with a naive and with a chunked head.

    python benchmarks/gpu_step.py           # Qwen3-0.6B and 1.7B, 32k packed tokens: under 8 minutes
    python benchmarks/gpu_step.py --smoke   # a small model on whatever there is, in seconds

Needs torch (2.12 or later) and transformers only; attention is torch's own variable-length flash kernel.
As in the recipe: float32 parameters under FSDP2 (one rank), bfloat16 arithmetic, activation checkpointing,
packed sequences, AdamW. MFU counts 6 FLOPs a parameter and token and 12 · layers · width · (mean context) for
attention; recomputation is not counted as work.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import core.losses.logprobs
import core.policy
from core.losses.drgrpo import drgrpo_loss
from core.losses.logprobs import selected_logprobs
from core.packing import TrainSequence, pack
from core.policy import policy_logprobs, prepare_policy
from core.update import finish_gradients, make_optimiser

QWEN3 = {"vocab_size": 151_936, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
SHAPES = {
    "Qwen3-0.6B": QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    "Qwen3-1.7B": QWEN3 | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28},
    "smoke": {
        "vocab_size": 8192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
    },
}
PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "B200": 2250}  # dense bfloat16


def rounded_head(hidden_CH, head_VH, targets_C, *, temperature, entropy):
    """The usual naive head: bfloat16 logits of all tokens, cast to float32, and their log-softmax."""
    logits_CV = (hidden_CH @ head_VH.T).float() / temperature
    logprobs_CV = torch.log_softmax(logits_CV, dim=-1)
    return -torch.nn.functional.nll_loss(logprobs_CV, targets_C, reduction="none"), None


class Clock:
    """Seconds and, on a GPU, peak GiB by phase; waits for the device at both ends of each."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}

    def now(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def phase(self, name: str):
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        start = self.now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start
        if self.on_gpu:
            self.peaks[name] = max(self.peaks.get(name, 0.0), torch.cuda.max_memory_allocated() / 2**30)


def new_policy(shape: dict, device: torch.device):
    torch.manual_seed(0)
    config = Qwen3Config(
        **shape,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        attn_implementation="packed",
    )
    with device:
        causal_lm = Qwen3ForCausalLM(config)  # float32: FSDP keeps the masters in it
    settings = SimpleNamespace(
        dtype="bfloat16", sharding="fsdp", cpu_offload=False, activation_checkpointing=True, compile=False
    )
    return prepare_policy(causal_lm, settings)  # type: ignore[arg-type]


def sequences(budget: int, vocabulary: int) -> list[TrainSequence]:
    """Prompts of 300 tokens and completions of 600 to 8,192 (scaled to the budget), filling the budget."""
    draw, left, made = random.Random(0), budget, []
    while left > budget // 40:
        prompt = budget // 110
        size = min(left, prompt + draw.randint(budget // 55, budget // 4))
        ids = tuple(draw.randrange(vocabulary) for _ in range(size))
        made.append(TrainSequence(ids, min(prompt, size - 1), draw.choice([-0.5, 0.5]), (), 1.0))
        left -= size
    return made


def flops(shape: dict, made: list[TrainSequence]) -> float:
    """Model FLOPs of one forward and backward pass; the head counts for completion tokens only."""
    width, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    layer = width * (2 * heads + 2 * keys) + 3 * width * shape["intermediate_size"]
    tokens = sum(len(one.token_ids) for one in made)
    completion = sum(one.completion_length for one in made)
    attention = sum(12 * layers * heads * len(one.token_ids) ** 2 / 2 for one in made)
    return 6 * (layers * layer * tokens + width * shape["vocab_size"] * completion) + attention


def measure(name: str, head: str, budget: int, steps: int, device: torch.device) -> dict:
    shape = SHAPES[name]
    core.policy.selected_logprobs = rounded_head if head == "naive" else selected_logprobs
    core.losses.logprobs.NAIVE_UP_TO = 0  # so that the smoke run's small head is chunked too
    policy, clock = new_policy(shape, device), Clock(device)
    rates = {"learning_rate": 2.0e-6, "temperature_learning_rate": None, "weight_decay": 0.0}
    settings = SimpleNamespace(name="adamw", **rates, beta1=0.9, beta2=0.999)
    optimiser = make_optimiser(policy, settings)  # type: ignore[arg-type]
    made = sequences(budget, shape["vocab_size"])
    cut = {"token_budget": budget, "rank": 0, "world_size": 1, "device": device, "dtype": torch.float32}
    for step in range(steps + 1):
        if step == 1:  # the first step starts libraries and makes the optimiser's state
            clock.seconds.clear()
            clock.peaks.clear()
        with clock.phase("pack"):
            (batch,) = pack(made, **cut)
        with clock.phase("forward"):
            logprobs_C, _ = policy_logprobs(policy, batch, temperature=1.0, entropy=False)
            loss, _ = drgrpo_loss(
                logprobs_C,
                logprobs_C.detach(),
                batch.advantages_C,
                batch.mask_C,
                batch.weights_C,
                clip_low=0.2,
                clip_high=0.3,
                dual_clip=None,
                normaliser=len(made) * budget,
            )
        with clock.phase("backward"):
            loss.backward()
        with clock.phase("update"):
            norm = finish_gradients(policy, 1.0)
            optimiser.step(1.0)
    seconds = {phase: total / steps for phase, total in clock.seconds.items()}
    whole, tokens = sum(seconds.values()), sum(len(one.token_ids) for one in made)
    card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    peak = next((value for key, value in PEAK_TFLOPS.items() if key in card), None)
    return {
        "model": name,
        "head": head,
        "tokens": tokens,
        "tokens_per_s": tokens / whole,
        "mfu": flops(shape, made) / whole / peak / 1e12 if peak else None,
        "peak_gib": max(clock.peaks.values(), default=None),
        "seconds": seconds,
        "peaks_gib": clock.peaks,
        "grad_norm": norm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a small model and 1,024 tokens")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one untimed")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.smoke:
        parser.error("no GPU here: only --smoke runs on a CPU")
    card = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "CPU"
    print(f"{card}, torch {torch.__version__}, transformers {transformers.__version__}")
    names = ["smoke"] if arguments.smoke else ["Qwen3-0.6B", "Qwen3-1.7B"]
    budget = 1024 if arguments.smoke else arguments.tokens
    rows = []
    for name in names:
        for head in ("naive", "chunked"):
            try:
                row = measure(name, head, budget, arguments.steps, device)
            except torch.OutOfMemoryError:
                row = {"model": name, "head": head, "out_of_memory": True}
            rows.append(row)
            gc.collect()  # FSDP's modules are cycles; what is left of them would count in the next peak
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if "out_of_memory" in row:
                print(f"{name:>10} {head:>7}: out of memory")
                continue
            phases = "  ".join(f"{phase} {1000 * s:,.0f}" for phase, s in row["seconds"].items())
            mfu = "" if row["mfu"] is None else f"  MFU {100 * row['mfu']:.1f} %"
            peaks = "  ".join(f"{phase} {gib:.1f}" for phase, gib in row["peaks_gib"].items())
            memory = f"  peak GiB: {peaks}" if peaks else ""
            print(f"{name:>10} {head:>7}: {row['tokens_per_s']:>9,.0f} tokens/s{mfu}  ms: {phases}{memory}")
        naive, chunked = rows[-2:]
        if "out_of_memory" not in naive and "out_of_memory" not in chunked:
            ratio = chunked["tokens_per_s"] / naive["tokens_per_s"]
            memory = ""
            if naive["peak_gib"]:
                memory = f", peak memory × {chunked['peak_gib'] / naive['peak_gib']:.2f}"
            print(f"{name:>10} chunked / naive: speed × {ratio:.2f}{memory}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
