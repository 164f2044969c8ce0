"""Guards: what a run watches in its own metrics, and what it does when one leaves its bounds for long."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from core.config import Config, GuardConfig
from core.errors import UserError
from core.run import Run


@dataclass(frozen=True)
class Reading:
    """What a guard sees of one step.

    >>> settings = GuardConfig(limit=10.0, steps=2, action="warn")
    >>> Reading("grad_norm", settings, 30.0, 30.0 > settings.limit, "the gradient's norm", "the rate").trips
    True
    """

    guard: str
    settings: GuardConfig
    value: float
    trips: bool
    what: str
    """What `value` is, in words."""
    advice: str
    """Where to look."""


class Guards:
    """Counts, for each guard, the steps in a row on which it tripped; acts at every `steps`-th of them.

    Their action: "warn" prints, "pause" waits for the user, "stop" ends the run before the step is saved.
    """

    def __init__(self, config: Config, run: Run) -> None:
        self._config, self._run = config, run
        self._rollouts = config.rollout.prompts * config.rollout.group_size
        self._tripped: Counter[str] = Counter()
        self._rewards: list[float] = []
        """Mean rewards of the last `reward_drop.steps` steps."""
        self._best = 0.0
        """The highest mean of so many rewards."""

    def check(self, step: int, metrics: dict[str, float]) -> None:
        """Look at a step's metrics, which are the same on every rank; to be called by every rank.

        Raises UserError if a guard whose action is "stop" has tripped often enough.
        """
        for reading in self._readings(metrics):
            settings, name = reading.settings, reading.guard
            self._tripped[name] = self._tripped[name] + 1 if reading.trips else 0
            if not reading.trips or self._tripped[name] % settings.steps:
                continue
            message = (
                f"guard {name}, step {step}: {reading.what} is {reading.value:.3g} (limit "
                f"{settings.limit:g}), {self._tripped[name]} steps in a row; look at {reading.advice}"
            )
            if settings.action == "stop":
                raise UserError(f"{message}; the last checkpoint is from before this step")
            if settings.action == "pause":
                self._run.pause(message)
            else:
                self._run.print(f"WARNING: {message}")

    def _readings(self, metrics: dict[str, float]) -> list[Reading]:
        guards = self._config.guards
        norm = metrics.get("update/grad_norm", math.nan)  # NaN, where no update took place, trips nothing
        drop = self._reward_against_best(metrics["reward/mean"], guards.reward_drop.steps)
        unknown = metrics["reward/censored"] / self._rollouts
        useful, length = metrics["reward/useful"], metrics["rollout/length/mean"]
        malformed = metrics["format/errors"]
        gap = metrics.get("rollout/logprob_gap/mean", math.nan)
        rows = (
            (
                *("grad_norm", guards.grad_norm, norm, norm > guards.grad_norm.limit),
                "the gradient's norm before clipping",
                "optimiser.learning_rate, and this step's rollouts for a text that repeats itself",
            ),
            (
                *("reward_drop", guards.reward_drop, drop, drop < guards.reward_drop.limit),
                "the mean reward, as a share of the best so far,",
                "verdicts (lean/*), format errors and the newest rollouts; then at the learning rate",
            ),
            (
                *("useful", guards.useful, useful, useful <= guards.useful.limit),
                "the share of rollouts with an advantage",
                "the problems' difficulty: where all of a group agree there is nothing to learn",
            ),
            (
                *("length", guards.length, length, length < guards.length.limit),
                "the mean completion, in tokens,",
                "the newest rollouts: a policy that stops at once, or a wrong end-of-turn token",
            ),
            (
                *("malformed", guards.malformed, malformed, malformed > guards.malformed.limit),
                "the share of rollouts that fail a format check",
                "format/<kind> for the check that fails, and prompt.style",
            ),
            (
                *("unknown", guards.unknown, unknown, unknown > guards.unknown.limit),
                "the share of rollouts without a verdict",
                "the verifier: its memory, its time limit, other load on its machine",
            ),
            (
                *("logprob_gap", guards.logprob_gap, gap, gap > guards.logprob_gap.limit),
                "the mean difference of sampler's and trainer's log-probs, in nats,",
                "rollout.engine: stale weights, another temperature, another precision",
            ),
        )
        return [Reading(*row) for row in rows if row[1].action != "ignore"]

    def _reward_against_best(self, reward: float, window: int) -> float:
        """The mean reward of the last `window` steps over the best such mean; NaN before there is one."""
        if math.isfinite(reward):
            self._rewards = [*self._rewards, reward][-window:]
        if len(self._rewards) < window:
            return math.nan
        mean = sum(self._rewards) / window
        self._best = max(self._best, mean)
        return mean / self._best if self._best else math.nan

    def state_dict(self) -> dict[str, Any]:
        return {"tripped": dict(self._tripped), "rewards": self._rewards, "best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tripped = Counter(state["tripped"])
        self._rewards, self._best = list(state["rewards"]), state["best"]
