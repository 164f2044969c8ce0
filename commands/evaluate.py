"""prover-eval: pass@k of a policy on an experiment's held-out problems, without training.

    torchrun --nproc-per-node=2 -m commands.evaluate --config experiments/drgrpo_tiny/config.yaml \\
        policy.path=runs/drgrpo_tiny/seed_0/cold_start/policy evaluate.temperature=0 evaluate.samples=1
"""

from __future__ import annotations

from pathlib import Path

from commands.dry_run import dry_run
from core.config import Config
from core.data import load_problems
from core.evaluate import evaluate, evaluation_metrics
from core.policy import load_policy
from core.prompts import load_tokenizer
from core.rewards import make_judge
from core.rollout import make_engine
from core.rollout.sync import WeightSync
from core.run import Run, launch

ROOT = Path(__file__).resolve().parents[1]


def measure(config: Config, run: Run) -> None:
    """Print the evaluation of `policy.path` on the first `evaluate.problems` held-out problems."""
    tokenizer, eos_ids = load_tokenizer(config.policy.path)
    heldout = load_problems(config.data.heldout, config.data.heldout_columns)[: config.evaluate.problems]
    policy = load_policy(config.policy)
    engine = make_engine(config, policy.causal_lm.config, tokenizer, eos_ids, run)
    WeightSync(engine, policy, config, run).update(0)
    outcomes, _ = evaluate(run, engine, make_judge(config, run), tokenizer, eos_ids, config, heldout)
    for name, value in evaluation_metrics(outcomes, config.evaluate.samples).items():
        run.print(f"{name:<28} {value:.4f}")


def main() -> None:
    launch(Config, ROOT / "experiments" / "drgrpo_1p7b" / "config.yaml", measure, dry_run)


if __name__ == "__main__":
    main()
