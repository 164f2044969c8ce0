"""Families of tiny theorems: each draws a random sequent, hypotheses first, goal last."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.drgrpo_tiny.families_terms import eq, exist, nat, universal
from experiments.drgrpo_tiny.formulas import (
    Formula,
    Sequent,
    conjunction,
    disjunction,
    equivalence,
    implication,
    negation,
    sequent,
)

P, Q, R, S, T, U = (Formula(letter) for letter in "pqrstu")
_PROPS = (P, Q, R, S, T, U)


def _propositional(hypotheses: Sequence[Formula], goal: Formula) -> Sequent:
    return sequent(dict.fromkeys("pqrstu", "Prop"), hypotheses, goal)


def _tree(
    rng: random.Random, leaves: Sequence[Formula], join: Callable[[Formula, Formula], Formula]
) -> Formula:
    """A random bracketing of `leaves` in their order."""
    if len(leaves) == 1:
        return leaves[0]
    cut = rng.randint(1, len(leaves) - 1)
    return join(_tree(rng, leaves[:cut], join), _tree(rng, leaves[cut:], join))


def _distracted(rng: random.Random, sequent: Sequent, chance: float) -> Sequent:
    """The sequent, by chance with one more hypothesis that its proof does not need."""
    _, hypotheses, goal = sequent
    if rng.random() >= chance:
        return sequent
    a, b = rng.sample(_PROPS, 2)
    shapes = [conjunction(a, b), disjunction(a, b), implication(a, b), equivalence(a, b), a]
    extra = rng.choice([*shapes, negation(a)])
    return _propositional([*hypotheses, extra], goal)


def conj(rng: random.Random) -> Sequent:
    """Take conjunctions apart and join their parts in another shape."""
    atoms = list(_PROPS[: rng.randint(2, 4)])
    leaves = [negation(a) if rng.random() < 0.12 else a for a in atoms]
    cut = rng.randint(1, len(leaves))
    groups = [g for g in (leaves[:cut], leaves[cut:]) if g]
    hypotheses = [_tree(rng, group, conjunction) for group in groups]
    wanted = rng.sample(leaves, rng.randint(1, min(3, len(leaves))))
    return _propositional(hypotheses, _tree(rng, wanted, conjunction))


def imp(rng: random.Random) -> Sequent:
    """Follow a chain of implications, past a distractor or two."""
    length = rng.randint(1, 4)
    chain = _PROPS[: length + 1]
    links = [implication(a, b) for a, b in pairwise(chain)]
    rest = _PROPS[length + 1 :]
    if length >= 2 and rng.random() < 0.35:
        at = rng.randrange(1, length)
        extra = chain[rng.randrange(at)]
        joined = conjunction(chain[at], extra)
        links[at] = (
            implication(joined, chain[at + 1])
            if rng.random() < 0.5
            else implication(extra, implication(chain[at], chain[at + 1]))
        )
    if rest and rng.random() < 0.4:
        other = rng.choice(chain)
        links.append(implication(other, rest[0]) if rng.random() < 0.6 else implication(rest[0], other))
    if rng.random() < 0.3:
        return _propositional(links, implication(chain[0], chain[-1]))
    return _propositional([chain[0], *links], chain[-1])


def _disj(rng: random.Random) -> Sequent:
    """Introduce and eliminate disjunctions."""
    kind = rng.randrange(6)
    if kind == 0:
        return _propositional([P], _tree(rng, rng.sample([P, Q, R], 3), disjunction))
    if kind == 1:
        return _propositional([conjunction(P, R)], disjunction(P, Q))
    left, right = P, Q
    hypotheses: list[Formula] = []
    if kind == 2:
        return _propositional([disjunction(P, Q), implication(P, R), implication(Q, R)], R)
    if kind in (3, 4):
        new = [R, S]
        for index in range(rng.randint(0, 2)):
            hypotheses.append(implication((P, Q)[index], new[index]))
            if index == 0:
                left = R
            else:
                right = S
    if kind == 5:
        goal = R if rng.random() < 0.5 else disjunction(P, Q)
        return _propositional([disjunction(conjunction(P, R), conjunction(Q, R))], goal)
    goal = disjunction(left, right)
    if rng.random() < 0.25:
        goal = disjunction(goal, T)
    return _propositional([disjunction(P, Q), *hypotheses], goal)


def disj(rng: random.Random) -> Sequent:
    """Introduce and eliminate disjunctions."""
    return _distracted(rng, _disj(rng), chance=0.6)


def _neg(rng: random.Random) -> Sequent:
    """Refute: contrapositives, double negation, contradiction."""
    length = rng.randint(1, 3)
    chain = _PROPS[: length + 1]
    links = [implication(a, b) for a, b in pairwise(chain)]
    kind = rng.randrange(5)
    if kind == 0:
        return _propositional([*links, negation(chain[-1])], negation(P))
    if kind == 1:
        return _propositional([*links[1:], P, implication(P, chain[1])], negation(negation(chain[-1])))
    if kind == 2:
        clash = links[: length - 1]
        goal = _PROPS[length] if rng.random() < 0.5 else disjunction(T, U)
        return _propositional([P, *clash, negation(chain[length - 1])], goal)
    if kind == 3:
        inner = disjunction(P, Q) if rng.random() < 0.5 else disjunction(P, conjunction(Q, R))
        side = inner.args[rng.randrange(2)]
        goal = negation(side)
        if rng.random() < 0.3:
            goal = conjunction(negation(inner.args[1]), negation(inner.args[0]))
        return _propositional([negation(inner)], goal)
    if rng.random() < 0.5:
        return _propositional([conjunction(P, negation(Q))], negation(implication(P, Q)))
    return _propositional([negation(P)], negation(conjunction(P, Q)))


def neg(rng: random.Random) -> Sequent:
    """Refute: contrapositives, double negation, contradiction."""
    return _distracted(rng, _neg(rng), chance=0.6)


def iff(rng: random.Random) -> Sequent:
    """Use equivalences in either direction; prove them from two implications."""
    length = rng.randint(1, 3)
    chain = _PROPS[: length + 1]
    links = [equivalence(a, b) for a, b in pairwise(chain)]
    if length >= 2 and rng.random() < 0.3:
        links[0] = implication(chain[0], chain[1])
        return _propositional([chain[0], *links], chain[-1])
    kind = rng.random()
    if kind < 0.2:
        a, b = chain[0], chain[1]
        return _propositional([implication(a, b), implication(b, a)], equivalence(a, b))
    if kind < 0.35 and length <= 2:
        return _propositional(links, implication(chain[0], chain[-1]))
    if kind < 0.5:
        goal = conjunction(chain[-1], chain[0]) if rng.random() < 0.5 else disjunction(chain[-1], T)
        return _propositional([chain[0], *links], goal)
    if kind < 0.6:
        return _propositional([*links, negation(chain[-1])], negation(chain[0]))
    return _propositional([chain[0], *links], chain[-1])


def _mix(rng: random.Random) -> Sequent:
    """Several connectives at once."""
    kind = rng.randrange(5)
    if kind == 0:
        link = implication(P, R) if rng.random() < 0.6 else equivalence(R, P)
        goal = rng.choice([R, conjunction(R, Q), disjunction(R, S)])
        return _propositional([conjunction(P, Q), link], goal)
    if kind == 1:
        goal = rng.choice([R, conjunction(R, P), conjunction(Q, R)])
        return _propositional([conjunction(implication(P, Q), implication(Q, R)), P], goal)
    if kind == 2:
        link = implication(disjunction(P, Q), R)
        start = P if rng.random() < 0.3 else conjunction(P, S)
        return _propositional([link, start], R if rng.random() < 0.3 else disjunction(R, T))
    if kind == 3:
        link = implication(conjunction(P, Q), R)
        if rng.random() < 0.5:
            return _propositional([link], implication(P, implication(Q, R)))
        return _propositional([link, Q], implication(P, rng.choice([R, conjunction(R, Q)])))
    link = implication(P, conjunction(Q, R))
    goal = rng.choice([Q, R, conjunction(R, Q), conjunction(R, P), disjunction(R, S)])
    start = P if rng.random() < 0.3 else conjunction(P, T)
    return _propositional([link, start], goal)


def mix(rng: random.Random) -> Sequent:
    """Several connectives at once."""
    return _distracted(rng, _mix(rng), chance=0.6)


@dataclass(frozen=True)
class Family:
    make: Callable[[random.Random], Sequent]
    weight: int
    """Its share of the stream, while it has new statements."""
    hypotheses: int = 3
    """At most; a small model confuses many."""
    longest: int = 100
    """Characters of a statement; binders and quantifiers take room."""


FAMILIES = {
    "conj": Family(conj, 1),
    "imp": Family(imp, 3, hypotheses=4, longest=110),
    "disj": Family(disj, 1),
    "neg": Family(neg, 4),
    "iff": Family(iff, 1),
    "mix": Family(mix, 2),
    "eq": Family(eq, 1),
    "all": Family(universal, 2, longest=155),
    "ex": Family(exist, 2, longest=165),
    "nat": Family(nat, 2, longest=145),
}
