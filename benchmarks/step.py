"""The training part of a step on the CPU: ours (packed) against a padded step and against TRL's GRPOTrainer.

    python benchmarks/step.py                                        # ours against padded
    python benchmarks/step.py --trl-python /path/to/venv/bin/python  # and against TRL, in a venv with trl

The same tiny Qwen3 (0.85 M parameters, float32), prompts, sampled tokens of uneven length, rewards, optimiser
and threads for all; Dr. GRPO, one update a step of 8 prompts × 8 completions. Each arm runs in a process of
its own, in turns. Printed: seconds a step, ratios, and the relative difference of the first gradients.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PROMPTS, GROUP, PROMPT_TOKENS, LIMIT, VOCABULARY = 8, 8, 35, 160, 512
PAD, EOS = 0, 1
RATE = 1.0e-4


def clock() -> float:
    """CPU seconds of a single thread, which a busy machine does not stretch; of more threads, wall clock."""
    import torch

    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def write_inputs(folder: Path) -> None:
    """A random model, a tokenizer of one word a token, and samples.json: completions of 8 to 160 tokens."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    names = {"<pad>": PAD, "<eos>": EOS} | {f"t{i}": i for i in range(2, VOCABULARY)}
    words = Tokenizer(models.WordLevel(names, unk_token="t2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(folder / "model")
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(2, VOCABULARY) for _ in range(count)]

    samples = []
    for _ in range(PROMPTS):
        lengths = [round(math.exp(draw.uniform(math.log(8), math.log(LIMIT)))) for _ in range(GROUP)]
        completions = [[*tokens(length - 1), EOS] for length in lengths]
        rewards = [float(draw.random() < 0.4) for _ in range(GROUP)]
        samples.append({"prompt": tokens(PROMPT_TOKENS), "completions": completions, "rewards": rewards})
    (folder / "samples.json").write_text(json.dumps(samples))


def run_ours(folder: Path, steps: int, padded: bool) -> dict:
    """Seconds of each step, and the first gradient into `folder`."""
    from types import SimpleNamespace

    import torch

    from core.advantages import group_advantages
    from core.losses.drgrpo import drgrpo_loss
    from core.packing import TrainSequence, pack
    from core.policy import load_policy, policy_logprobs
    from core.update import finish_gradients, make_optimiser

    samples = json.loads((folder / "samples.json").read_text())
    rewards = [reward for one in samples for reward in one["rewards"]]
    groups = [number for number in range(PROMPTS) for _ in range(GROUP)]
    pairs = [(one["prompt"], completion) for one in samples for completion in one["completions"]]
    sequences = [
        TrainSequence((*prompt, *completion), len(prompt), advantage or 0.0, (), 1.0)
        for (prompt, completion), advantage in zip(pairs, group_advantages(rewards, groups), strict=True)
    ]
    policy = load_policy(
        SimpleNamespace(  # type: ignore[arg-type]
            path=str(folder / "model"),
            dtype="float32",
            attention="sdpa" if padded else "packed",
            sharding="none",
            cpu_offload=False,
            activation_checkpointing=False,
            compile=False,
        )
    )
    settings = {"name": "adamw", "learning_rate": RATE, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999}
    settings |= {"temperature_learning_rate": None}
    optimiser = make_optimiser(policy, SimpleNamespace(**settings))  # type: ignore[arg-type]
    cut = {"rank": 0, "world_size": 1, "device": policy.device, "dtype": torch.float32}
    bounds = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": None}
    seconds = []
    for step in range(steps + 1):
        start = clock()
        if padded:  # micro-batches of 8 rows, in the order they came
            parts = [sequences[row : row + GROUP] for row in range(0, len(sequences), GROUP)]
            batches = [pack(part, token_budget=10**6, **cut)[0] for part in parts]
        else:
            batches = pack(sequences, token_budget=4096, **cut)
        for number, batch in enumerate(batches):
            if padded:
                logprobs_C = padded_logprobs(policy.causal_lm, parts[number])
            else:
                logprobs_C, _ = policy_logprobs(policy, batch, temperature=1.0, entropy=False)
            loss, _ = drgrpo_loss(
                logprobs_C,
                logprobs_C.detach(),
                batch.advantages_C,
                batch.mask_C,
                batch.weights_C,
                **bounds,
                normaliser=len(sequences) * LIMIT,
            )
            loss.backward()
        finish_gradients(policy, 1e9)
        if step == 0:
            gradient = {name: p.grad.clone() for name, p in policy.causal_lm.named_parameters()}
            torch.save(gradient, folder / f"{'padded' if padded else 'ours'}.pt")
        optimiser.step(1.0)
        seconds.append(clock() - start)
    return {"train": seconds[1:], "generate": None if padded else generate_ours(folder, policy, samples)}


def padded_logprobs(causal_lm, part):
    """Completion log-probs of one micro-batch by transformers alone: right-padded rows and a 2-D mask."""
    import torch

    width = max(len(one.token_ids) for one in part)
    ids = torch.full((len(part), width), PAD)
    mask = torch.zeros(len(part), width, dtype=torch.long)
    for row, one in enumerate(part):
        ids[row, : len(one.token_ids)] = torch.tensor(one.token_ids)
        mask[row, : len(one.token_ids)] = 1
    logits = causal_lm(input_ids=ids, attention_mask=mask, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    rows = zip(logprobs, part, strict=True)
    return torch.cat([row[one.prompt_length - 1 : len(one.token_ids) - 1] for row, one in rows])


def generate_ours(folder: Path, policy, samples: list[dict]) -> list[float]:
    """Seconds for PROMPTS × GROUP completions by the embedded engine, per token."""
    import torch
    from transformers import PreTrainedTokenizerFast

    from core.policy import full_parameters
    from core.problems import Problem
    from core.rollout import RolloutRequest
    from core.rollout.transformers_engine import TransformersEngine

    engine = TransformersEngine(
        policy.causal_lm.config,
        PreTrainedTokenizerFast.from_pretrained(folder / "model"),
        (EOS,),
        dtype=torch.float32,
        device=torch.device("cpu"),
        seed=0,
        max_rows=PROMPTS * GROUP,
    )
    engine.update_weights(full_parameters(policy))
    problem = Problem("p", "theorem p : True :=", "", "", "benchmark")
    requests = [
        RolloutRequest(problem, tuple(one["prompt"]), str(number), 0, ("benchmark", number, k))
        for number, one in enumerate(samples)
        for k in range(GROUP)
    ]
    per_token = []
    for _ in range(3):
        start = clock()
        rollouts = list(engine.generate(requests, LIMIT, 1.0, 1.0))
        tokens = sum(len(one.completion_ids) for one in rollouts)
        per_token.append((clock() - start) / tokens)
    return per_token[1:]


def run_trl(folder: Path, steps: int) -> dict:
    """TRL's own trainer from data loader to optimiser, with samples.json for what it samples."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    samples = json.loads((folder / "samples.json").read_text())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    texts = [tokenizer.decode(one["prompt"]) for one in samples]
    number_of = {tuple(one["prompt"]): number for number, one in enumerate(samples)}
    sampling = [0.0]

    class Fixed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            start = clock()
            result = super()._generate_and_score_completions(inputs)
            sampling.append(clock() - start)
            return result

        def _generate_single_turn(self, prompt_ids, *rest, **named):
            numbers = [number_of[tuple(ids)] for ids in prompt_ids]
            return [samples[n]["completions"][place % GROUP] for place, n in enumerate(numbers)], None

    def reward(prompts, completions, **_):
        return [samples[texts.index(p)]["rewards"][place % GROUP] for place, p in enumerate(prompts)]

    seconds, marks = [], {}

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            marks["start"], marks["sampled"] = clock(), len(sampling)

        def on_pre_optimizer_step(self, args, state, control, model, **_):
            if state.global_step == 0:
                gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
                torch.save(gradient, folder / "trl.pt")

        def on_step_end(self, args, state, control, **_):
            whole = clock() - marks["start"]
            seconds.append(whole - sum(sampling[marks["sampled"] :]))

    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.3,
        num_generations=GROUP,
        max_completion_length=LIMIT,
        per_device_train_batch_size=GROUP,
        gradient_accumulation_steps=PROMPTS,
        gradient_checkpointing=False,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1e9,
        max_steps=steps + 1,
        temperature=1.0,
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    trainer = Fixed(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
        callbacks=[Watch()],
    )
    trainer.train()
    return {"train": seconds[1:], "generate": generate_trl(trainer, GRPOTrainer, samples)}


def generate_trl(trainer, base: type, samples: list[dict]) -> list[float]:
    """Seconds a token of TRL's own generation for the same prompts."""
    prompts = [one["prompt"] for one in samples for _ in range(GROUP)]
    per_token = []
    for _ in range(3):
        start = clock()
        completions, _ = base._generate_single_turn(trainer, prompts, None, {}, GROUP)
        per_token.append((clock() - start) / sum(map(len, completions)))
    return per_token[1:]


ARMS = {
    "ours": lambda folder, steps: run_ours(folder, steps, padded=False),
    "padded": lambda folder, steps: run_ours(folder, steps, padded=True),
    "trl": run_trl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="timed steps a turn, after one untimed")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-python", help="the python of a virtual environment with trl")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    if arguments.child:
        arm, name = arguments.child.split(":", 1)
        figures = ARMS[arm](Path(name), arguments.steps)
        (Path(name) / f"{arm}.json").write_text(json.dumps(figures))
        return
    arms = ["ours", "padded", *(["trl"] if arguments.trl_python else [])]
    train, generate = {arm: [] for arm in arms}, {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        options = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
        for _ in range(arguments.turns):
            for arm in arms:
                python = arguments.trl_python if arm == "trl" else sys.executable
                command = [python, __file__, *options, "--child", f"{arm}:{folder}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                figures = json.loads((folder / f"{arm}.json").read_text())
                train[arm] += figures["train"]
                generate[arm] += figures["generate"] or []
        samples = json.loads((folder / "samples.json").read_text())
        ours = torch.load(folder / "ours.pt")
        gaps = {arm: relative(torch.load(folder / f"{arm}.pt"), ours) for arm in arms[1:]}
    lengths = [len(completion) for one in samples for completion in one["completions"]]
    tokens = sum(lengths) + len(lengths) * PROMPT_TOKENS
    print(
        f"{len(lengths)} completions of {min(lengths)} to {max(lengths)} tokens (mean "
        f"{sum(lengths) / len(lengths):.0f}), {arguments.threads} thread(s), torch {torch.__version__}"
    )
    for arm in arms:
        best = min(train[arm])
        line = f"{arm:>7}: train {best:.3f} s a step, {tokens / best:,.0f} tokens/s"
        if generate[arm]:
            line += f"; generate {1 / min(generate[arm]):,.0f} tokens/s"
        print(line)
    for arm in arms[1:]:
        line = f"{arm} / ours: train × {min(train[arm]) / min(train['ours']):.2f}"
        if generate[arm]:
            line += f", generate × {min(generate[arm]) / min(generate['ours']):.2f}"
        print(f"{line} (seconds); relative difference of the first gradients {gaps[arm]:.1e}")


def relative(left: dict, right: dict) -> float:
    """‖left − right‖ / ‖right‖ over all parameters."""
    difference = sum(float((left[name] - right[name]).double().square().sum()) for name in right)
    return (difference / sum(float(x.double().square().sum()) for x in right.values())) ** 0.5


if __name__ == "__main__":
    main()
