"""Families about individuals: equality, quantifiers and natural numbers with induction."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from experiments.drgrpo_tiny.formulas import (
    ZERO,
    Formula,
    Sequent,
    conjunction,
    disjunction,
    equality,
    every,
    implication,
    negation,
    sequent,
    some,
)

_SYMBOLS = {
    **dict.fromkeys("abcde", "α"),
    **dict.fromkeys("PQRS", "α → Prop"),
    **dict.fromkeys("fg", "α → α"),
    **dict.fromkeys("pq", "Prop"),
}
_NAT_SYMBOLS = {
    **dict.fromkeys("nmk", "Nat"),
    **dict.fromkeys("PQRS", "Nat → Prop"),
    **dict.fromkeys("fg", "Nat → Nat"),
}
A, B, C, D = (Formula(letter) for letter in "abcd")
N, M, X = Formula("n"), Formula("m"), Formula("x")


def _on(predicate: str, term: Formula) -> Formula:
    return Formula(predicate, (term,))


def _links(predicates: Sequence[str], sort: str) -> list[Formula]:
    """∀ x, P x → Q x for each neighbouring pair."""
    return [
        every("x", sort, implication(_on(first, X), _on(second, X))) for first, second in pairwise(predicates)
    ]


def eq(rng: random.Random) -> Sequent:
    """Chain, turn around and use equations."""
    points = [A, B, C, D][: rng.randint(2, 4)]
    equations = [equality(a, b) if rng.random() < 0.65 else equality(b, a) for a, b in pairwise(points)]
    kind = rng.random()
    if kind < 0.45:
        goal = equality(points[0], points[-1])
        hypotheses = equations
    elif kind < 0.75:
        del equations[2:]
        points = points[:3]
        function = rng.choice("fg")
        goal = equality(_on(function, points[0]), _on(function, points[-1]))
        hypotheses = equations
    else:
        del equations[2:]
        points = points[:3]
        goal = _on("P", points[-1])
        hypotheses = [*equations, _on("P", points[0])]
    if rng.random() < 0.4:
        extra = [
            equality(rng.choice(points[:3]), rng.choice([D, Formula("e")])),
            _on("Q", rng.choice(points)),
        ]
        hypotheses = [*hypotheses, rng.choice(extra)]
    return sequent(_SYMBOLS, hypotheses, goal)


def universal(rng: random.Random) -> Sequent:
    """Instantiate and prove universal statements."""
    predicates = "PQR"[: rng.randint(1, 3)]
    links = _links(predicates, "α")
    first, last = predicates[0], predicates[-1]
    kind = rng.random()
    if len(predicates) == 1 or kind < 0.2:
        hypotheses = [every("x", "α", _on(first, X)), *links]
        goals = [
            _on(last, A),
            conjunction(_on(last, A), _on(last, B)),
            disjunction(_on(last, A), _on("S", A)),
            every("x", "α", disjunction(_on(last, X), _on("S", X))),
        ]
        goal = rng.choice(goals)
    elif kind < 0.6:
        hypotheses = [_on(first, A), *links]
        goal = rng.choice([_on(last, A), _on(last, A), conjunction(_on(last, A), _on(first, A))])
    elif kind < 0.8:
        hypotheses = links
        goal = every("x", "α", implication(_on(first, X), _on(last, X)))
    else:
        hypotheses = [negation(_on(last, A)), *links]
        goal = negation(_on(first, A))
    return _distracted(rng, hypotheses, goal)


def exist(rng: random.Random) -> Sequent:
    """Give and take witnesses."""
    predicates = "PQR"[: rng.randint(1, 2)]
    links = _links(predicates, "α")
    first, last = predicates[0], predicates[-1]
    both = conjunction(_on("P", X), _on("S", X))
    kind = rng.randrange(5)
    if kind == 0:
        hypotheses, goal = [_on(first, A), *links], some("x", _on(last, X))
    elif kind == 1:
        links = _links("PQR"[: rng.randint(2, 3)], "α")
        end = links[-1].args[2].args[1].head
        hypotheses, goal = [some("x", _on("P", X)), *links], some("x", _on(end, X))
    elif kind == 2:
        hypotheses, goal = [some("x", both)], some("x", rng.choice(both.args))
    elif kind == 3:
        parts = [_on("P", A), _on("S", A)]
        hypotheses, goal = parts, some("x", both)
    else:
        hypotheses = [negation(some("x", _on("P", X)))]
        goal = negation(_on("P", A))
        if rng.random() < 0.5:
            goal = every("x", "α", negation(_on("P", X)))
    return _distracted(rng, hypotheses, goal)


def _distracted(rng: random.Random, hypotheses: Sequence[Formula], goal: Formula) -> Sequent:
    """By chance one more hypothesis that the proof does not need."""
    if rng.random() < 0.6:
        extra = [
            every("x", "α", implication(_on(rng.choice("PQR"), X), _on("S", X))),
            every("x", "α", implication(_on("S", X), _on(rng.choice("PQR"), X))),
            _on(rng.choice("QRS"), rng.choice([A, B])),
            implication(_on(rng.choice("PQ"), A), _on("S", B)),
        ]
        hypotheses = [*hypotheses, rng.choice(extra)]
    return sequent(_SYMBOLS, hypotheses, goal)


def nat(rng: random.Random) -> Sequent:
    """Count, compute, and prove by induction."""
    step = every("x", "Nat", implication(_on("P", X), _on("P", _on("Nat.succ", X))))
    hypotheses = [_on("P", ZERO), step]
    kind = rng.randrange(6)
    if kind == 0:
        start = rng.randrange(2)
        hypotheses = [_on("P", Formula(str(start))), step]
        goal = _on("P", Formula(str(start + rng.randint(1, 2))))
    elif kind == 1:
        hypotheses, goal = [_on("P", N), step], _on("P", _on("Nat.succ", N))
    elif kind == 2:
        goal = every("x", "Nat", _on("P", X))
        if rng.random() < 0.4:
            goal = _on("P", N)
    elif kind == 3:
        link = every("x", "Nat", implication(_on("P", X), _on("Q", X)))
        hypotheses = [*hypotheses, link]
        goal = _on("Q", rng.choice([ZERO, Formula("1"), N]))
    elif kind == 4:
        return _computation(rng)
    else:
        term = rng.choice(["Nat.succ", "f"])
        hypotheses = [equality(N, M) if rng.random() < 0.6 else equality(M, N)]
        goal = equality(_on(term, N), _on(term, M))
    if rng.random() < 0.6:
        extra = [
            _on("R", rng.choice([N, ZERO, Formula("1")])),
            equality(N, rng.choice([Formula("k"), ZERO])),
            every("x", "Nat", implication(_on("R", X), _on(rng.choice("PQ"), X))),
            every("x", "Nat", implication(_on(rng.choice("PQ"), X), _on("R", X))),
        ]
        hypotheses = [*hypotheses, rng.choice(extra)]
    return sequent(_NAT_SYMBOLS, hypotheses, goal)


def _computation(rng: random.Random) -> Sequent:
    """An equation that holds by computation, or follows from one that does."""
    left, right = rng.randrange(4), rng.randrange(4)
    terms = [Formula(str(left)), N]
    start = rng.choice(terms)
    total = Formula("Nat.add", (start, Formula(str(right))))
    if start is N:
        end = N
        for _ in range(min(right, 2)):
            end = _on("Nat.succ", end)
        total = Formula("Nat.add", (N, Formula(str(min(right, 2)))))
    else:
        end = Formula(str(left + right))
    shape = rng.randrange(3)
    if shape == 0:
        return sequent(_NAT_SYMBOLS, [], equality(total, end))
    if shape == 1:
        return sequent(_NAT_SYMBOLS, [], equality(_on("f", total), _on("f", end)))
    wrapped = conjunction(equality(total, end), _on("Q", M))
    return sequent(_NAT_SYMBOLS, [_on("Q", M)], wrapped)
