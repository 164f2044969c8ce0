"""Problems: what a theorem to prove is, and the order in which training draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from core.seeds import derive_seed

if TYPE_CHECKING:
    from core.config import Config


@dataclass(frozen=True)
class Problem:
    """A theorem to prove.

    >>> Problem(
    ...     name="and_comm_1",
    ...     statement="theorem and_comm_1 (p q : Prop) (h : And p q) : And q p :=",
    ...     header="",
    ...     informal="If p and q hold, then q and p hold.",
    ...     source="propositional",
    ...     difficulty=1.0,
    ... ).name
    'and_comm_1'
    """

    name: str
    """A name of its own among the problems; as a rule the theorem's."""
    statement: str
    """Lean source from `theorem` (or the definitions it brings along) to its last `:=` or `:= by`, with or
    without a `sorry` behind it."""
    header: str
    """Imports, `open` and options that stand before the statement; ours, never the model's."""
    informal: str
    """The statement in English; may be empty."""
    source: str
    """Family or data set it comes from."""
    difficulty: float | None = None
    """A label that grows with difficulty, if the data has one."""


class ProblemStream:
    """A seeded order of problems without end; what a step draws is a pure function of (seed, step).

    Step s draws the window that begins at s × stride of an order that shuffles each epoch anew. The
    stride is the number of fresh problems in a step whose error-fix cache is full.
    """

    def __init__(self, problems: Sequence[Problem], config: Config) -> None:
        self.problems = list(problems)
        self.seed = config.run.seed
        fresh = config.rollout.prompts - round(config.rollout.prompts * config.error_fix.fraction)
        self.stride = max(fresh, 1)

    def draw(self, step: int, count: int) -> list[Problem]:
        """The `count` problems that step `step` begins with."""
        start = step * self.stride
        return [self._at(position) for position in range(start, start + count)]

    def _at(self, position: int) -> Problem:
        epoch, index = divmod(position, len(self.problems))
        return self.problems[_permutation(len(self.problems), derive_seed(self.seed, "epoch", epoch))[index]]


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(size)
