"""The error-fix turn: failed attempts come back as prompts, with what Lean said about them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from core.config import Config, ErrorFixConfig
from core.lean.feedback import error_fix_message, within_tokens
from core.lean.verdict import Verdict
from core.problems import Problem, ProblemStream
from core.prompts import error_fix_prompt_ids, prompt_ids
from core.rewards import ScoredRollout
from core.rollout import RolloutRequest
from core.seeds import derive_seed

FIXABLE = (Verdict.FAILED, Verdict.REFUSED, Verdict.TIMEOUT, Verdict.CRASHED)


@dataclass(frozen=True)
class FailedAttempt:
    """A failed first attempt, ready to be asked about again.

    `prompt_ids` are the ids of the whole error-fix prompt: problem, attempt, feedback.
    """

    problem: Problem
    prompt_ids: tuple[int, ...]
    feedback: str


def failed_attempt(
    scored: ScoredRollout,
    tokenizer: Any,
    eos_ids: Sequence[int],
    settings: ErrorFixConfig,
    max_prompt_tokens: int,
) -> FailedAttempt | None:
    """The error-fix prompt for a first attempt that Lean did not accept.

    None if there is nothing to fix (proved, censored, malformed, already a fix), if the feedback is
    overlong and `overlong` says "drop", or if the prompt would outgrow `max_prompt_tokens`.
    """
    result = scored.result
    if result is None or result.verdict not in FIXABLE or scored.rollout.request.turn > 0:
        return None
    code = scored.format.lean_code
    assert code is not None, "Lean was asked, so there is code"

    def message(max_characters: int | None) -> str | None:
        return error_fix_message(
            code,
            result,
            max_errors=settings.max_errors,
            context_lines=settings.context_lines,
            max_characters=max_characters,
            overlong=settings.overlong,
        )

    feedback = within_tokens(
        message,
        max_characters=settings.max_characters,
        max_tokens=settings.max_tokens,
        count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
    )
    if feedback is None:
        return None
    request = scored.rollout.request
    ids = error_fix_prompt_ids(
        tokenizer, request.prompt_ids, scored.rollout.completion_ids, feedback, eos_ids
    )
    return FailedAttempt(request.problem, ids, feedback) if len(ids) <= max_prompt_tokens else None


def failed_attempts(
    scored_B: Sequence[ScoredRollout], tokenizer: Any, eos_ids: Sequence[int], config: Config
) -> list[FailedAttempt]:
    """The attempts among `scored_B` that an error-fix turn can be asked for, in order."""
    limit, settings = config.prompt.max_tokens, config.error_fix
    if settings.only_solved_groups:
        solved = {s.rollout.request.group for s in scored_B if s.reward}
        scored_B = [s for s in scored_B if s.rollout.request.group in solved]
    attempts = (failed_attempt(s, tokenizer, eos_ids, settings, limit) for s in scored_B)
    return [attempt for attempt in attempts if attempt is not None]


class ErrorFixCache:
    """The newest failed attempts; each is handed out at most once."""

    def __init__(self, capacity: int) -> None:
        self._attempts: deque[FailedAttempt] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempts: Sequence[FailedAttempt]) -> None:
        """Put attempts in; beyond the capacity the oldest are forgotten."""
        self._attempts.extend(attempts)

    def state_dict(self) -> list[dict[str, Any]]:
        return [vars(attempt) | {"problem": asdict(attempt.problem)} for attempt in self._attempts]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        self._attempts.clear()
        for saved in state:
            problem, ids = Problem(**saved["problem"]), tuple(saved["prompt_ids"])
            self._attempts.append(FailedAttempt(problem, ids, saved["feedback"]))

    def take(self, count: int, seed: int) -> list[FailedAttempt]:
        """Take out up to `count` attempts, at most one a problem, at random by `seed`."""
        taken: dict[str, int] = {}
        for index in np.random.default_rng(seed).permutation(len(self._attempts)).tolist():
            if len(taken) == count:
                break
            taken.setdefault(self._attempts[index].problem.name, index)
        chosen = [self._attempts[index] for index in taken.values()]
        gone = set(taken.values())
        kept = [attempt for index, attempt in enumerate(self._attempts) if index not in gone]
        self._attempts = deque(kept, maxlen=self._attempts.maxlen)
        return chosen


def step_requests(
    stream: ProblemStream, cache: ErrorFixCache, tokenizer: Any, config: Config, step: int, count: int
) -> list[RolloutRequest]:
    """`count` prompts of a step, each `group_size` times: failed attempts from the cache, the rest fresh.

    While the cache holds too few attempts fresh problems take their places.
    """
    wanted = round(count * config.error_fix.fraction)
    attempts = cache.take(wanted, derive_seed(config.run.seed, "error_fix", step))
    fresh = stream.draw(step, count - len(attempts))
    prompts = [(p, prompt_ids(tokenizer, p, config.prompt.style), 0) for p in fresh]
    prompts += [(a.problem, a.prompt_ids, 1) for a in attempts]
    return [
        RolloutRequest(problem, ids, f"{step}/{place}", turn, ("train", step, place, sample))
        for place, (problem, ids, turn) in enumerate(prompts)
        for sample in range(config.rollout.group_size)
    ]
