"""The tiny theorems: distinct up to renaming, disjoint splits, proofs found, the same for a seed."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.drgrpo_tiny.families import FAMILIES
from experiments.drgrpo_tiny.formulas import (
    Formula,
    conjunction,
    disjunction,
    equality,
    every,
    implication,
    negation,
    some,
)
from experiments.drgrpo_tiny.prover import prove
from experiments.drgrpo_tiny.theorems import Theorem, canonical, split, theorems

P, Q, R = (Formula(letter) for letter in "pqr")
HARDEST = 7


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Theorem], list[Theorem]]:
    return split(seed=5, train=5_200, heldout=300, hardest=HARDEST)


def test_lean_text_by_hand() -> None:
    x, px, qx = Formula("x"), Formula("P", (Formula("x"),)), Formula("Q", (Formula("x"),))
    succ = Formula("Nat.succ", (Formula("n"),))
    texts = {
        implication(implication(P, Q), R): "(p → q) → r",
        implication(P, implication(Q, R)): "p → q → r",
        conjunction(P, disjunction(Q, negation(R))): "And p (Or q (Not r))",
        every("x", "α", implication(px, qx)): "∀ (x : α), P x → Q x",
        negation(some("x", px)): "Not (Exists (fun x => P x))",
        implication(every("x", "α", px), P): "(∀ (x : α), P x) → p",
        equality(Formula("f", (succ,)), x): "Eq (f (Nat.succ n)) x",
    }
    assert {formula: formula.lean() for formula in texts} == texts


def test_english_text_by_hand() -> None:
    theorem = Theorem(
        "conj0417",
        "conj",
        dict.fromkeys("pqr", "Prop"),
        (implication(conjunction(P, Q), R), P),
        disjunction(R, negation(Q)),
        1,
    )
    assert theorem.informal() == "If (p and q) implies r, p, then r or not q."
    assert theorem.statement() == (
        "theorem conj04 (p q r : Prop) (h1 : And p q → r) (h2 : p) : Or r (Not q) :="
    )


def test_computing_and_substituting() -> None:
    n, three = Formula("n"), Formula("3")
    add = Formula("Nat.add", (n, Formula("2")))
    assert add.computed().lean() == "Nat.succ (Nat.succ n)"
    assert Formula("Nat.add", (three, Formula("1"))).computed().lean() == "4"
    step = Formula("P", (Formula("Nat.succ", (Formula("x"),)),))
    assert step.substitute("x", three).lean() == "P 4"
    assert step.substitute("x", n).lean() == "P (Nat.succ n)"


def test_the_same_seed_gives_the_same_theorems() -> None:
    first, second = (split(seed=3, train=60, heldout=20, hardest=HARDEST) for _ in range(2))
    assert first == second
    assert split(seed=4, train=60, heldout=20, hardest=HARDEST) != first


def test_left_and_right_are_right_equally_often(drawn) -> None:
    rng = random.Random(0)
    rules = [{t.prove(rng).rule for _ in range(4)} for t in itertools.chain(*drawn) if t.goal.head == "Or"]
    left, right = rules.count({"inl"}), rules.count({"inr"})
    assert left + right > 500
    assert abs(left - right) < 3 * (left + right) ** 0.5, "three standard deviations of a fair coin"


def test_more_theorems_keep_the_earlier_ones_of_the_stream() -> None:
    few = list(itertools.islice(theorems(0, HARDEST, set()), 50))
    many = list(itertools.islice(theorems(0, HARDEST, set()), 120))
    assert many[:50] == few


def _shape(theorem: Theorem) -> str:
    """An independent canonical form: variables in a statement's text numbered as they come."""
    hypotheses_and_goal = re.search(r"(\(h1 .*|: [^()]*:=$|: Eq .*)", theorem.statement())
    assert hypotheses_and_goal is not None
    text = hypotheses_and_goal.group()
    symbols = {*theorem.sorts, *"xyz"}
    numbers: dict[str, str] = {}
    return re.sub(
        r"\b[a-zA-Z]\b",
        lambda m: numbers.setdefault(m.group(), f"#{len(numbers)}") if m.group() in symbols else m.group(),
        text,
    )


def test_all_theorems_differ_up_to_renaming_and_the_splits_are_disjoint(drawn) -> None:
    train, heldout = drawn
    everything = [*train, *heldout]
    assert len(everything) == 5_500
    assert len({_shape(theorem) for theorem in everything}) == 5_500
    assert len({theorem.name for theorem in everything}) == 5_500
    assert not {_shape(t) for t in train} & {_shape(t) for t in heldout}


def test_families_are_in_both_splits_and_difficulties_spread(drawn) -> None:
    train, heldout = drawn
    assert {t.family for t in train} == set(FAMILIES)
    assert {t.family for t in heldout} == set(FAMILIES)
    about_individuals = sum(t.family in ("all", "ex", "nat") for t in train)
    assert about_individuals >= 0.08 * len(train), "quantifiers and recursion are no rarity"
    for family in FAMILIES:
        difficulties = {t.difficulty for t in train if t.family == family}
        assert len(difficulties) >= 2, family
        assert max(difficulties) <= HARDEST


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), pick=st.integers(0, 5_199))
def test_renaming_keeps_the_canonical_form_and_the_name(drawn, seed: int, pick: int) -> None:
    theorem = drawn[0][pick]
    other = theorem.renamed(random.Random(seed))
    forms = [canonical(t.hypotheses, t.goal, set(t.sorts)) for t in (theorem, other)]
    assert forms[0] == forms[1]
    assert other.name == theorem.name
    assert sorted(other.sorts.values()) == sorted(theorem.sorts.values())


def test_canonical_tells_different_statements_apart() -> None:
    symbols = {"p", "q", "r"}
    same = canonical((conjunction(P, Q),), P, symbols)
    assert same == canonical((conjunction(R, P),), R, symbols)
    assert same != canonical((conjunction(P, Q),), Q, symbols)
    assert same != canonical((conjunction(P, P),), P, symbols)


def _holds(formula: Formula, world: dict[str, bool]) -> bool:
    values = [_holds(argument, world) for argument in formula.args]
    if not values:
        return world[formula.head]
    return {
        "And": lambda: values[0] and values[1],
        "Or": lambda: values[0] or values[1],
        "→": lambda: not values[0] or values[1],
        "Iff": lambda: values[0] == values[1],
        "Not": lambda: not values[0],
    }[formula.head]()


def test_propositional_theorems_are_true_in_every_world(drawn) -> None:
    checked = 0
    for theorem in drawn[1]:
        if set(theorem.sorts.values()) != {"Prop"}:
            continue
        for values in itertools.product([False, True], repeat=len(theorem.sorts)):
            world = dict(zip(theorem.sorts, values, strict=True))
            if all(_holds(hypothesis, world) for hypothesis in theorem.hypotheses):
                assert _holds(theorem.goal, world), theorem.statement()
        checked += 1
    assert checked > 100


def test_the_search_does_not_prove_what_is_false() -> None:
    rng = random.Random(0)
    assert prove([("h1", disjunction(P, Q))], P, [], rng) is None
    assert prove([("h1", implication(P, Q)), ("h2", Q)], P, [], rng) is None
    x, px = Formula("x"), Formula("P", (Formula("x"),))
    assert x.lean() == "x"
    assert prove([("h1", some("x", px))], every("x", "α", px), [], rng) is None


def test_families_without_new_theorems_raise() -> None:
    with pytest.raises(ValueError, match="exhausted"):
        list(itertools.islice(theorems(0, 0, set()), 1))
