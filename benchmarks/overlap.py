"""What a step's rollout phase costs beyond the slower of its two halves: python benchmarks/overlap.py.

The real engine samples a batch from a small trained policy (the golden run's) while the real judge sends each
rollout to the embedded Lean the moment it is finished. Three arms in turns: sampling alone; format checks and
Lean alone, on the same rollouts; both together as in training. Printed: seconds of each, and

    together ÷ max(sampling alone, verification alone)

which is 1 when the shorter half hides behind the longer one. On a machine with two processors or more the
sampling thread has the first and Lean's processes the second for themselves (--same-cpu: they compete), so
that the figure is about waiting and not about sharing one processor.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM

from core.format_checks import PRESETS
from core.lean.embedded import EmbeddedLean
from core.problems import Problem
from core.prompts import load_tokenizer, prompt_ids
from core.rewards import Judge, ScoredRollout
from core.rollout import RolloutRequest
from core.rollout.transformers_engine import TransformersEngine

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"


def make_engine(max_rows: int) -> TransformersEngine:
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / "policy", dtype=torch.float32)
    tokenizer, eos_ids = load_tokenizer(str(GOLDEN / "policy"))
    device = torch.device("cpu")
    engine = TransformersEngine(
        model.config, tokenizer, eos_ids, dtype=torch.float32, device=device, seed=0, max_rows=max_rows
    )
    engine.update_weights(model.named_parameters())
    return engine


def make_requests(engine: TransformersEngine, batch: int, turn: int) -> list[RolloutRequest]:
    """`batch` requests, 8 a problem; the texts differ from turn to turn."""
    lines = (GOLDEN / "problems.jsonl").read_text().splitlines()
    problems = [Problem(**json.loads(line)) for line in lines]
    requests = []
    for i in range(batch):
        problem = problems[i // 8 % len(problems)]
        ids = prompt_ids(engine.tokenizer, problem, "compact")
        requests.append(RolloutRequest(problem, ids, problem.name, 0, ("overlap", turn, i)))
    return requests


def clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--max-rows", type=int, default=32, help="rows decoded at once")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--lean-batch", type=int, default=16, help="proofs a Lean file, at most")
    parser.add_argument("--same-cpu", action="store_true", help="do not place the two halves apart")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cpus = sorted(os.sched_getaffinity(0))
    apart = len(cpus) > 1 and not arguments.same_cpu
    if apart:
        os.sched_setaffinity(0, {cpus[1]})  # what is started now stays there: Lean's threads and processes
    verifier = EmbeddedLean(
        workers=1,
        batch_size=arguments.lean_batch,
        timeout_s=60.0,
        memory_mb=1024,
        max_output_bytes=1_000_000,
        cache_entries=0,  # the same texts are checked twice
    )
    assert verifier.healthy() is None
    if apart:
        os.sched_setaffinity(0, {cpus[0]})
    judge = Judge(verifier, PRESETS["tiny"], retry_s=1.0, say=print)
    engine = make_engine(arguments.max_rows)
    ratios, scored = [], []
    for turn in range(arguments.turns + 1):
        requests = make_requests(engine, arguments.batch, turn)
        rollouts: list = []

        def sample(requests=requests, rollouts=rollouts) -> None:
            rollouts[:] = engine.generate(requests, arguments.max_new_tokens, 1.0, 1.0)

        def judge_all(rollouts=rollouts) -> list[ScoredRollout]:
            return judge.score(rollouts, lambda _: None)

        def both(requests=requests) -> None:
            scored[:] = judge.score(
                engine.generate(requests, arguments.max_new_tokens, 1.0, 1.0), lambda _: None
            )

        alone, lean, together = clock(sample), clock(judge_all), clock(both)
        if turn:  # the first turn warms up
            ratios.append(together / max(alone, lean))
            print(
                f"sampling {alone:.2f} s, verification {lean:.2f} s, together {together:.2f} s: "
                f"× {ratios[-1]:.3f} of the slower, × {together / (alone + lean):.3f} of their sum",
                flush=True,
            )
    verifier.close()
    asked = sum(s.result is not None for s in scored)
    proved = sum(s.proved for s in scored)
    where = "sampling on one CPU, Lean on another" if apart else "both on the same CPUs"
    print(f"batch {arguments.batch}: {asked} rollouts reached Lean, {proved} proved; {where}")
    print(f"together / slower half: median {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
