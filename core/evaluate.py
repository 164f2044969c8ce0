"""Evaluation on held-out problems: unbiased pass@k, before and after one error-fix turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from core.config import Config
from core.error_fix import failed_attempt
from core.metrics import mean
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
    fix_censored: int = 0
    """Failed attempts whose error-fix turn or fresh second attempt got no verdict."""

    @property
    def fixed(self) -> int:
        """Samples proved at first or after their error-fix turn."""
        return self.proved + self.fix_proved


def pass_rate(outcome: Outcome, k: int, *, fixed: bool) -> float | None:
    """pass@k of one problem, before or after error fixing; None if it has fewer than k judged samples.

    After error fixing it is None too if a fix or its rival got no verdict: that sample is not a failure, and
    to leave it out would flatter the problem, since only failed attempts are fixed.
    """
    if outcome.samples < k or (fixed and outcome.fix_censored):
        return None
    return pass_at_k(outcome.samples, outcome.fixed if fixed else outcome.proved, k)


def pass_rates(outcomes: Sequence[Outcome], k: int, *, fixed: bool) -> list[float]:
    """pass@k of each problem that has one."""
    return [rate for outcome in outcomes if (rate := pass_rate(outcome, k, fixed=fixed)) is not None]


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
    outcomes = count_outcomes(attempts, retries)
    by_name = {outcome.name: outcome for outcome in run.gather(outcomes)}
    return [by_name[problem.name] for problem in problems], attempts + retries


def count_outcomes(attempts: Sequence[ScoredRollout], retries: Sequence[ScoredRollout]) -> list[Outcome]:
    """Count per problem; `retries` alternates a failed attempt's error-fix turn and fresh second try."""
    counts: dict[str, Counter[str]] = {s.rollout.request.group: Counter() for s in attempts}
    for scored in attempts:
        if scored.reward is not None:
            count = counts[scored.rollout.request.group]
            count.update(samples=1, proved=scored.proved, malformed=not scored.format.passed)
    for fix, again in zip(retries[::2], retries[1::2], strict=True):
        count = counts[fix.rollout.request.group]
        if fix.reward is None or again.reward is None:
            count.update(fix_censored=1)
        else:
            count.update(fix_tried=1, fix_proved=fix.proved, again_proved=again.proved)
    numbers = [field.name for field in fields(Outcome) if field.name != "name"]
    return [Outcome(name, **{n: count[n] for n in numbers}) for name, count in counts.items()]


def evaluation_metrics(outcomes: Sequence[Outcome], samples: int) -> dict[str, float]:
    """The numbers of one evaluation under their glossary names."""
    judged = sum(o.samples for o in outcomes)
    tried = sum(o.fix_tried for o in outcomes)
    metrics = {
        "evaluate/pass@1": mean(pass_rates(outcomes, 1, fixed=False)),
        f"evaluate/pass@{samples}": mean(pass_rates(outcomes, samples, fixed=False)),
        "evaluate/format_errors": sum(o.malformed for o in outcomes) / max(judged, 1),
        "evaluate/censored": float(len(outcomes) * samples - judged + sum(o.fix_censored for o in outcomes)),
    }
    if tried:
        metrics |= {
            "evaluate/fixed/pass@1": mean(pass_rates(outcomes, 1, fixed=True)),
            f"evaluate/fixed/pass@{samples}": mean(pass_rates(outcomes, samples, fixed=True)),
            "evaluate/fix/success": sum(o.fix_proved for o in outcomes) / tried,
            "evaluate/again/success": sum(o.again_proved for o in outcomes) / tried,
        }
    return metrics
