"""Evaluation on held-out problems: unbiased pass@k, before and after one error-fix turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from core.config import Config
from core.error_fix import failed_attempt
from core.problems import Problem
from core.prompts import prompt_ids
from core.rewards import Judge, ScoredRollout, in_request_order
from core.rollout import RolloutEngine, RolloutRequest
from core.run import Run


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right: 1 − C(n−c, k) / C(n, k).

    Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {correct} right among {samples} samples is not defined")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


@dataclass(frozen=True)
class Outcome:
    """What became of one problem's samples; censored samples are in none of the counts.

    >>> Outcome("and_comm_1", samples=8, proved=3, malformed=1, fix_tried=4, fix_proved=2,
    ...         again_proved=1).fixed
    5
    """

    name: str
    samples: int
    """Judged first attempts."""
    proved: int
    """First attempts proved."""
    malformed: int
    """First attempts that failed a format check."""
    fix_tried: int
    """Failed attempts that went into an error-fix turn and a fresh second attempt, both judged."""
    fix_proved: int
    """Of those, proved by the error-fix turn."""
    again_proved: int
    """Of those, proved by a fresh second attempt at the same problem (the fix turn's rival)."""

    @property
    def fixed(self) -> int:
        """Samples proved at first or after their error-fix turn."""
        return self.proved + self.fix_proved


@dataclass(frozen=True)
class Estimate:
    """A mean over problems and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f} %"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error of independent values, one a problem."""
    if not values:
        return Estimate(math.nan, math.nan)
    array = np.asarray(values, dtype=float)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return Estimate(float(array.mean()), float(error))


def paired_difference(before: Sequence[float], after: Sequence[float]) -> tuple[Estimate, float]:
    """Mean of after − before over the same problems, and the two-sided p-value of its z-test."""
    difference = estimate([b - a for a, b in zip(before, after, strict=True)])
    if not difference.error:
        return difference, 1.0 if difference.mean == 0 else 0.0
    z = abs(difference.mean) / difference.error
    return difference, 2.0 * (1.0 - NormalDist().cdf(z))


def pass_rates(outcomes: Sequence[Outcome], k: int, *, fixed: bool) -> list[float]:
    """pass@k of each problem that has at least k judged samples."""
    counted = [o for o in outcomes if o.samples >= k]
    return [pass_at_k(o.samples, o.fixed if fixed else o.proved, k) for o in counted]


def evaluate(
    run: Run,
    engine: RolloutEngine,
    judge: Judge,
    tokenizer: Any,
    eos_ids: Sequence[int],
    config: Config,
    problems: Sequence[Problem],
) -> tuple[list[Outcome], list[ScoredRollout]]:
    """Sample, check and count each problem; all ranks share the work and get all outcomes.

    The random streams depend on problem and sample alone, so two evaluations of one run are paired.
    The error-fix turn is measured against its rival at the same budget: a fresh second attempt.
    Returns the outcomes in the order of `problems`, and this rank's rollouts.
    """
    settings = config.evaluate
    first = []
    for problem in run.share(problems, key=lambda problem: problem.name):
        ids = prompt_ids(tokenizer, problem, config.prompt.style)
        for sample in range(settings.samples):
            key = ("evaluate", problem.name, "first", sample)
            first.append(RolloutRequest(problem, ids, group=problem.name, turn=0, seed_key=key))

    def judged(requests: Sequence[RolloutRequest], name: str) -> list[ScoredRollout]:
        with run.phase(name, total=len(requests)) as advance:
            rollouts = engine.generate(
                requests, config.rollout.max_new_tokens, settings.temperature, settings.top_p
            )
            return in_request_order(judge.score(rollouts, advance), requests)

    attempts = judged(first, "evaluate")
    second: list[RolloutRequest] = []
    if settings.error_fix:
        for scored in attempts:
            request = scored.rollout.request
            limit = config.prompt.max_tokens
            failed = failed_attempt(scored, tokenizer, eos_ids, config.error_fix, limit)
            if failed is not None:
                name, sample = request.problem.name, request.seed_key[-1]
                fix_key, again_key = (("evaluate", name, which, sample) for which in ("fix", "again"))
                fix = replace(request, prompt_ids=failed.prompt_ids, turn=1, seed_key=fix_key)
                second += [fix, replace(request, seed_key=again_key)]
    retries = judged(second, "evaluate fixes") if second else []
    outcomes = _outcomes(attempts, retries)
    by_name = {outcome.name: outcome for outcome in run.gather(outcomes)}
    return [by_name[problem.name] for problem in problems], attempts + retries


def _outcomes(attempts: Sequence[ScoredRollout], retries: Sequence[ScoredRollout]) -> list[Outcome]:
    """Count per problem; `retries` alternates error-fix turn and fresh second attempt."""
    counts: dict[str, Counter[str]] = {s.rollout.request.group: Counter() for s in attempts}
    for scored in attempts:
        if scored.reward is not None:
            count = counts[scored.rollout.request.group]
            count.update(samples=1, proved=scored.proved, malformed=not scored.format.passed)
    for fix, again in zip(retries[::2], retries[1::2], strict=True):
        if fix.reward is not None and again.reward is not None:
            count = counts[fix.rollout.request.group]
            count.update(fix_tried=1, fix_proved=fix.proved, again_proved=again.proved)
    fields = ("samples", "proved", "malformed", "fix_tried", "fix_proved", "again_proved")
    return [Outcome(name, **{f: count[f] for f in fields}) for name, count in counts.items()]


def fix_against_again(outcomes: Sequence[Outcome]) -> tuple[Estimate, Estimate, Estimate]:
    """Success of the error-fix turn, of a fresh second attempt, and their paired difference.

    Ratios over all failed attempts that got both; standard errors by linearisation with problems as
    the independent units (Cochran, Sampling Techniques, 3rd ed., §6.4).
    """
    tried = np.array([o.fix_tried for o in outcomes], dtype=float)
    fixed = np.array([o.fix_proved for o in outcomes], dtype=float)
    again = np.array([o.again_proved for o in outcomes], dtype=float)

    def ratio(successes: np.ndarray) -> Estimate:
        if not tried.sum():
            return Estimate(math.nan, math.nan)
        mean = successes.sum() / tried.sum()
        residuals = successes - mean * tried
        return Estimate(float(mean), float(math.sqrt((residuals**2).sum()) / tried.sum()))

    return ratio(fixed), ratio(again), ratio(fixed - again)


def evaluation_metrics(outcomes: Sequence[Outcome], samples: int) -> dict[str, float]:
    """The numbers of one evaluation under their glossary names."""
    judged = sum(o.samples for o in outcomes)
    tried = sum(o.fix_tried for o in outcomes)
    metrics = {
        "evaluate/pass@1": estimate(pass_rates(outcomes, 1, fixed=False)).mean,
        f"evaluate/pass@{samples}": estimate(pass_rates(outcomes, samples, fixed=False)).mean,
        "evaluate/format_errors": sum(o.malformed for o in outcomes) / max(judged, 1),
        "evaluate/censored": float(len(outcomes) * samples - judged),
    }
    if tried:
        metrics |= {
            "evaluate/fixed/pass@1": estimate(pass_rates(outcomes, 1, fixed=True)).mean,
            f"evaluate/fixed/pass@{samples}": estimate(pass_rates(outcomes, samples, fixed=True)).mean,
            "evaluate/fix/success": sum(o.fix_proved for o in outcomes) / tried,
            "evaluate/again/success": sum(o.again_proved for o in outcomes) / tried,
        }
    return metrics
