"""Problems: what a theorem to prove is, reading them from files, and the order they are drawn in."""

from __future__ import annotations

from dataclasses import dataclass


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
    """The theorem's name, as its statement declares it."""
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
