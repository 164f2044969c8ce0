"""prover-eval: pass@k of a policy on an experiment's held-out problems, without training.

    torchrun --nproc-per-node=2 -m commands.evaluate --config experiments/drgrpo_tiny/config.yaml \\
        policy.path=runs/drgrpo_tiny/seed_0/cold_start/policy evaluate.temperature=0 evaluate.samples=1
"""

from __future__ import annotations

from pathlib import Path

from commands.dry_run import dry_run
from core.config import Config
from core.data import load_problems
from core.evaluate import Outcome, evaluate, evaluation_metrics
from core.policy import load_policy
from core.prompts import load_tokenizer
from core.rewards import Judge, make_judge
from core.rollout import make_engine
from core.rollout.sync import WeightSync
from core.run import Run, launch

DEFAULT_CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_1p7b" / "config.yaml"


def measure(config: Config, run: Run) -> None:
    """Print the evaluation of `policy.path` on the first `evaluate.problems` held-out problems."""
    outcomes = outcomes_of(config, run, make_judge(config, run))
    for name, value in evaluation_metrics(outcomes, config.evaluate.samples).items():
        run.print(f"{name:<28} {value:.4f}")


def outcomes_of(config: Config, run: Run, judge: Judge) -> list[Outcome]:
    """What became of the samples of `policy.path`, in the order of the held-out problems, on every rank."""
    tokenizer, eos_ids = load_tokenizer(config.policy.path)
    heldout = load_problems(config.data.heldout, config.data.heldout_columns)[: config.evaluate.problems]
    policy = load_policy(config.policy)
    engine = make_engine(config, policy.causal_lm.config, tokenizer, eos_ids, run)
    WeightSync(engine, policy, config, run).update(0)
    return evaluate(run, engine, judge, tokenizer, eos_ids, config, heldout)[0]


def main() -> None:
    launch(Config, DEFAULT_CONFIG, measure, dry_run)


if __name__ == "__main__":
    main()
