"""prover-compare: two policies on an experiment's held-out problems, paired, at every k.

    torchrun --nproc-per-node=2 -m commands.compare runs/drgrpo_tiny/seed_0/cold_start/policy \\
        runs/drgrpo_tiny/seed_0/train/policies/step_00130 --config experiments/drgrpo_tiny/config.yaml \\
        evaluate.samples=32

First attempts alone. More samples a problem than training's evaluation has make pass@8 more exact: of eight
samples it is a yes or a no.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from commands.dry_run import dry_run
from commands.estimates import estimate, paired_difference
from commands.evaluate import DEFAULT_CONFIG, outcomes_of
from core.config import Config
from core.evaluate import pass_rates
from core.rewards import make_judge
from core.run import Run, launch


def compare(config: Config, run: Run, after: str) -> None:
    """Print unbiased pass@k of `policy.path` and of `after`, k = 1, 2, 4, … up to `evaluate.samples`."""
    judge = make_judge(config, run)
    config = replace(config, evaluate=replace(config.evaluate, error_fix=False))
    old = outcomes_of(config, run, judge)
    new = outcomes_of(replace(config, policy=replace(config.policy, path=after)), run, judge)
    # A censored sample leaves its problem with fewer: such a problem is in no pair.
    samples = config.evaluate.samples
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a.samples == b.samples == samples]
    run.print(f"{len(pairs)} of {len(old)} problems with {samples} judged samples each (mean ± s.e.)")
    for k in (2**power for power in range(samples.bit_length())):
        rates = [pass_rates([pair[side] for pair in pairs], k, fixed=False) for side in (0, 1)]
        difference, p = paired_difference(*rates)
        means = " → ".join(str(estimate(one)) for one in rates)
        run.print(f"pass@{k:<3} {means}  {difference.signed()}  p = {p:.2g}")


def _policy(argument: str) -> str:
    """An override where a policy should stand means that a policy is missing."""
    if "=" in argument and not Path(argument).exists():
        raise argparse.ArgumentTypeError(f"{argument} is an override; first come two policies' folders")
    return argument


def main() -> None:
    parser = argparse.ArgumentParser(usage="%(prog)s BEFORE AFTER [--config FILE] [key=value …]")
    parser.add_argument("before", metavar="BEFORE", type=_policy, help="a policy's folder")
    parser.add_argument("after", metavar="AFTER", type=_policy, help="another's, for the same problems")
    parser.add_argument("--config", default=str(DEFAULT_CONFIG), help="the YAML file to start from")
    arguments, overrides = parser.parse_known_args()
    sys.argv[1:] = ["--config", arguments.config, *overrides, f"policy.path={arguments.before}"]
    launch(Config, DEFAULT_CONFIG, partial(compare, after=arguments.after), dry_run)


if __name__ == "__main__":
    main()
