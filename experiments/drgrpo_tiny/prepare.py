"""Writes the tiny experiment's data: problems, demonstrations and tokenizer, into one folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.config import ErrorFixConfig
from core.lean.feedback import error_fix_message
from core.lean.verdict import LeanCheck, LeanResult, Verdict, Verifier
from core.prompts import problem_messages
from experiments.drgrpo_tiny.demonstrations import (
    Attempt,
    demonstrate,
    demonstrate_fix,
    with_lines,
)
from experiments.drgrpo_tiny.mistakes import spoil
from experiments.drgrpo_tiny.theorems import Theorem, split
from experiments.drgrpo_tiny.tokenizer import save_tokenizer, train_tokenizer

VOCABULARY = 640
_TOKENIZER_ROWS = 4_000  # demonstrations that the tokenizer counts
Row = dict[str, Any]


def prepare(
    folder: Path,
    *,
    seed: int,
    train_problems: int,
    heldout_problems: int,
    demonstrations: int,
    error_fix_demonstrations: int,
    checked_demonstrations: int,
    error_fix: ErrorFixConfig,
    verifier: Verifier,
) -> None:
    """Write train.jsonl, heldout.jsonl, demonstrations.jsonl and tokenizer/ into `folder`.

    The problem files hold one `Problem` a row; a demonstration holds `problem` (a name),
    `kind` ("proof" or "error_fix") and `messages`, of which the last is the target. Demonstrations
    stand on training problems only, each time in fresh letters. The same seed gives the same files.
    Lean checks every failed attempt, whose message it writes, and the first
    `checked_demonstrations` of the right proofs; ValueError if it does not accept one of those.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train, heldout = split(seed, train_problems, heldout_problems)
    _write(folder / "train.jsonl", (asdict(theorem.problem()) for theorem in train))
    _write(folder / "heldout.jsonl", (asdict(theorem.problem()) for theorem in heldout))

    rng = random.Random(f"{seed} demonstrations")
    attempts = [demonstrate(train[i % len(train)].renamed(rng), rng) for i in range(demonstrations)]
    fixes = fix_rows(train, error_fix_demonstrations, error_fix, verifier, rng)
    check_all_proved(attempts[:checked_demonstrations], verifier)
    rows = [*map(proof_row, attempts), *fixes]
    rng.shuffle(rows)
    _write(folder / "demonstrations.jsonl", rows)

    counted = [message for row in rows[:_TOKENIZER_ROWS] for message in row["messages"]]
    texts = (f"{message['role']}\n{message['content']}" for message in counted)
    save_tokenizer(train_tokenizer(texts, VOCABULARY), folder / "tokenizer")


def proof_row(attempt: Attempt) -> Row:
    """The row of a plain demonstration."""
    messages = problem_messages(attempt.theorem.problem(), "compact")
    messages.append({"role": "assistant", "content": attempt.completion})
    return {"problem": attempt.theorem.name, "kind": "proof", "messages": messages}


def fix_rows(
    theorems: Sequence[Theorem],
    count: int,
    settings: ErrorFixConfig,
    verifier: Verifier,
    rng: random.Random,
) -> list[Row]:
    """`count` rows, fewer if by bad luck too many spoilt proofs are proofs still (one in a hundred)."""
    candidates: list[tuple[Attempt, Attempt]] = []
    while len(candidates) < count + count // 20:
        right = demonstrate(rng.choice(theorems).renamed(rng), rng)
        spoilt = spoil([line.text for line in right.lines], right.theorem, rng)
        if spoilt is not None:
            candidates.append((right, with_lines(right, spoilt, rng)))
    rows = []
    results = verify([failed for _, failed in candidates], verifier)
    for (right, failed), result in zip(candidates, results, strict=True):
        row = fix_row(right, failed, result, settings, rng)
        if row is not None and len(rows) < count:
            rows.append(row)
    return rows


def fix_row(
    right: Attempt,
    failed: Attempt,
    result: LeanResult,
    settings: ErrorFixConfig,
    rng: random.Random,
) -> Row | None:
    """The row that shows a failed attempt, Lean's message and the right proof; None if it is no failure."""
    errors = [message for message in result.messages if message.severity == "error"]
    if result.verdict is not Verdict.FAILED or not errors:
        return None
    feedback = error_fix_message(
        failed.code,
        result,
        max_errors=settings.max_errors,
        context_lines=settings.context_lines,
        max_characters=settings.max_characters,
        overlong=settings.overlong,
    )
    if feedback is None:
        return None
    first = min(errors, key=lambda message: (message.line, message.column))
    fixed = demonstrate_fix(right, [line.text for line in failed.lines], first, rng)
    row = proof_row(failed)
    row["messages"] += [
        {"role": "user", "content": feedback},
        {"role": "assistant", "content": fixed.completion},
    ]
    return row | {"kind": "error_fix"}


def verify(attempts: Sequence[Attempt], verifier: Verifier) -> list[LeanResult]:
    """Lean's answers, in order."""
    checks = (
        LeanCheck(f"demonstration-{index}", attempt.theorem.problem(), attempt.code)
        for index, attempt in enumerate(attempts)
    )
    futures = [verifier.submit(check) for check in checks]
    return [future.result() for future in futures]


def check_all_proved(attempts: Sequence[Attempt], verifier: Verifier) -> None:
    """Raise ValueError unless Lean accepts every one."""
    for attempt, result in zip(attempts, verify(attempts, verifier), strict=True):
        if result.verdict is not Verdict.PROVED:
            said = result.messages[0].text if result.messages else result.rule
            raise ValueError(
                f"a demonstration must be a proof, but {attempt.theorem.name} is "
                f"{result.verdict.value}: {said}\n{attempt.code}"
            )


def _write(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
