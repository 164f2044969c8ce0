"""From rollouts to rewards: format checks, then Lean, then a number, or none where Lean is out of order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from core.config import Config
from core.errors import UserError
from core.format_checks import FormatReport, FormatThresholds, check_format
from core.lean.backends import make_verifier
from core.lean.verdict import LeanCheck, LeanResult, Verdict, Verifier
from core.rollout import Rollout, RolloutRequest
from core.run import Run


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout with everything that was found out about it."""

    rollout: Rollout
    format: FormatReport
    result: LeanResult | None
    """None: a format check failed, so Lean was not asked."""
    reward: float | None
    """1 or 0; None: censored, the infrastructure failed and the proof stays unjudged."""

    @property
    def proved(self) -> bool:
        """Format checks passed and Lean accepted the proof."""
        return self.reward == 1.0


def reward(report: FormatReport, result: LeanResult | None) -> float | None:
    """The recipe's reward: 1 if every format check passed and Lean proved it, 0 otherwise, None for UNKNOWN.

    Timeouts and crashes reach us only after they repeated alone: they are the proof's, and earn 0.
    """
    if not report.passed:
        return 0.0
    if result is None or result.verdict is Verdict.UNKNOWN:
        return None
    return 1.0 if result.verdict is Verdict.PROVED else 0.0


def make_judge(config: Config, run: Run) -> Judge:
    """A judge whose verifier has passed its canaries; UserError if Lean is not to be had."""
    verifier = make_verifier(config.lean, run.print)
    run.on_exit(verifier.close)
    sick = verifier.healthy()
    if sick is not None:
        raise UserError(f"Lean ({verifier.name}) does not pass its canaries: {sick}")
    run.print(f"Lean: {verifier.name}")
    goals = config.error_fix.fraction > 0 or config.evaluate.error_fix
    return Judge(verifier, config.format, config.lean.retry_s, run.print, goals)


@dataclass(frozen=True)
class Judge:
    """What decides about a rollout: the format checks' thresholds and a Lean verifier."""

    verifier: Verifier
    thresholds: FormatThresholds
    retry_s: float
    """Seconds between canaries while Lean is out of order."""
    say: Callable[[str], None]
    """Shows a line to the user."""
    goals: bool = False
    """Whether Lean is asked for the goals of failed first attempts, which an error-fix turn shows."""

    def score(self, rollouts: Iterable[Rollout], advance: Callable[[int], None]) -> list[ScoredRollout]:
        """Check each rollout the moment it is finished, while others are still being sampled.

        Where Lean gives no verdict its canaries are run; while they fail the run waits here, saying
        so, and asks again when they pass. What stays UNKNOWN with healthy canaries is censored.
        """
        pending: list[tuple[Rollout, FormatReport, Future[LeanResult] | None]] = []
        answered = 0
        for rollout in rollouts:
            truncated = rollout.finish_reason != "stop"
            problem = rollout.request.problem
            report = check_format(rollout.text, problem, self.thresholds, truncated=truncated)
            future = self.verifier.submit(self._check(rollout, report)) if report.passed else None
            pending.append((rollout, report, future))
            while answered < len(pending) and ((first := pending[answered][2]) is None or first.done()):
                answered += 1
                advance(1)
        scored = []
        for number, (rollout, report, future) in enumerate(pending):
            result = future.result() if future else None
            if result and result.verdict is Verdict.UNKNOWN:
                self.wait_until_healthy(f"no verdict for {result.id}: {result.rule}")
                result = self.verifier.submit(self._check(rollout, report)).result()
            scored.append(ScoredRollout(rollout, report, result, reward(report, result)))
            if number >= answered:
                advance(1)
        return scored

    def wait_until_healthy(self, reason: str) -> None:
        """Return when the verifier's canaries pass; until then say what is wrong and try again."""
        sick = self.verifier.healthy()
        if sick is None:
            return
        name = self.verifier.name
        self.say(f"PAUSED: {reason}. No rewards are given while Lean ({name}) is out of order.")
        while sick is not None:
            self.say(f"  canaries: {sick}; trying again in {self.retry_s:g} s")
            time.sleep(self.retry_s)
            sick = self.verifier.healthy()
        self.say("RESUMED: the canaries pass again")

    def _check(self, rollout: Rollout, report: FormatReport) -> LeanCheck:
        assert report.lean_code is not None, "a passed report has code"
        request = rollout.request
        id = "/".join(map(str, request.seed_key))
        return LeanCheck(id, request.problem, report.lean_code, goals=self.goals and request.turn == 0)


def in_request_order(
    scored: Sequence[ScoredRollout], requests: Sequence[RolloutRequest]
) -> list[ScoredRollout]:
    """`scored`, from any rank and in any order, in the order of `requests`."""
    by_key = {s.rollout.request.seed_key: s for s in scored}
    return [by_key[request.seed_key] for request in requests]
