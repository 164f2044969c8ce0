"""What a Lean verifier is asked and what it answers: six verdicts, never a number."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from core.problems import Problem


class Verdict(Enum):
    """What became of one check. Only `rewards.py` turns it into a number."""

    PROVED = "proved"  # positive evidence from Lean's kernel
    FAILED = "failed"  # Lean read the proof and did not accept it
    REFUSED = "refused"  # the scan found a forbidden construct; Lean was not asked
    TIMEOUT = "timeout"  # wall clock on the proof, and again when repeated alone
    CRASHED = "crashed"  # Lean died on the proof, and again when repeated alone
    UNKNOWN = "unknown"  # the infrastructure failed: says nothing about the proof, is censored


@dataclass(frozen=True)
class LeanMessage:
    """A message of Lean, its position counted in the model's own code (line from 1, column from 0,
    in code points)."""

    severity: str
    """"error", "warning" or "info"."""
    line: int
    column: int
    end_line: int | None
    end_column: int | None
    text: str


@dataclass(frozen=True)
class LeanCheck:
    """One proof to check: `code` is the text of the model's ```lean4 block, untouched."""

    id: str
    problem: Problem
    code: str
    goals: bool = False
    """Whether a failure is to come with the goals before its errors, if the backend can tell."""


@dataclass(frozen=True)
class LeanResult:
    """The answer to one LeanCheck, matched by `id`."""

    id: str
    verdict: Verdict
    messages: tuple[LeanMessage, ...]
    rule: str | None
    """The scan's rule behind a refusal, or a short reason behind timeout, crashed and unknown."""
    seconds: float
    """Wall time Lean spent on it (its share of a batched file)."""
    goals: tuple[str, ...] = ()
    """Goals before each error, where the backend was asked for them."""
    raw: str = ""
    """What Lean's side answered about a proof that was accepted, word for word."""


class Verifier(Protocol):
    """A way to a real Lean. Answers arrive through futures, in any order, each exactly once."""

    name: str
    counts: Counter[str]
    """Verdicts so far, by name; refusals also as `refused/RULE`, answers from the cache as `cached`."""

    def submit(self, check: LeanCheck) -> Future[LeanResult]:
        """Queue one check. The future never raises because of the proof's content."""
        ...

    def healthy(self) -> str | None:
        """Run the canaries now. None if all came out right, else one line that says what did not."""
        ...

    def close(self) -> None:
        """Stop every process of this verifier; pending futures resolve to UNKNOWN."""
        ...
