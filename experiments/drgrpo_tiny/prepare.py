"""Writes the tiny experiment's data: problems, demonstrations and tokenizer, into one folder."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.config import ErrorFixConfig, LeanConfig, parse_arguments, to_yaml
from core.errors import UserError
from core.lean.backends import make_verifier
from core.lean.feedback import error_fix_message
from core.lean.verdict import LeanCheck, LeanResult, Verdict, Verifier
from core.prompts import problem_messages
from experiments.drgrpo_tiny.demonstrations import (
    Attempt,
    demonstrate,
    demonstrate_fix,
    from_goal,
    with_lines,
)
from experiments.drgrpo_tiny.mistakes import spoil
from experiments.drgrpo_tiny.theorems import Theorem, split
from experiments.drgrpo_tiny.tokenizer import save_tokenizer, train_tokenizer

_TOKENIZER_ROWS = 4_000  # demonstrations that the tokenizer counts
PROMPT_STYLE = "statement"  # as prompt.style in config.yaml: the model meets the same prompts in training
Row = dict[str, Any]


@dataclass(frozen=True)
class Config:
    seed: int
    folder: str
    train_problems: int
    heldout_problems: int
    hardest: int  # inferences of a problem's proof, at most
    demonstrations: int  # right proofs
    error_fix_demonstrations: int
    checked_demonstrations: int  # right proofs that Lean checks; all of them in the tests
    vocabulary: int  # tokens, the 256 bytes included
    error_fix: ErrorFixConfig  # the message's shape; the same as in config.yaml
    lean: LeanConfig


def prepare(config: Config, verifier: Verifier) -> None:
    """Write train.jsonl, heldout.jsonl, demonstrations.jsonl and tokenizer/ into `config.folder`.

    The problem files hold one `Problem` a row; a demonstration holds `problem` (a name), its
    `difficulty`, `kind` ("proof" or "error_fix") and `messages`, of which the last is the target.
    Demonstrations stand on training problems only, each time in fresh letters. The same config
    gives the same files. Lean checks every failed attempt, whose message it writes, and the first
    `checked_demonstrations` of the right proofs; ValueError if it does not accept one of those.
    """
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    train, heldout = split(config.seed, config.train_problems, config.heldout_problems, config.hardest)
    _write(folder / "train.jsonl", (asdict(theorem.problem()) for theorem in train))
    _write(folder / "heldout.jsonl", (asdict(theorem.problem()) for theorem in heldout))

    rng = random.Random(f"{config.seed} demonstrations")
    spoilt = spoilt_attempts(train, config.error_fix_demonstrations, rng)
    spoilt_answers = submit([failed for _, failed in spoilt], verifier)
    attempts = [  # while Lean reads
        demonstrate(train[index % len(train)].renamed(rng), rng) for index in range(config.demonstrations)
    ]
    checked = attempts[: config.checked_demonstrations]
    require_proofs(checked, submit(checked, verifier))
    fixes = fix_rows(spoilt, spoilt_answers, config.error_fix)
    rows = [*map(proof_row, attempts), *fixes[: config.error_fix_demonstrations]]
    rng.shuffle(rows)
    _write(folder / "demonstrations.jsonl", rows)

    counted = [message for row in rows[:_TOKENIZER_ROWS] for message in row["messages"]]
    texts = (f"{message['role']}\n{message['content']}" for message in counted)
    save_tokenizer(train_tokenizer(texts, config.vocabulary), folder / "tokenizer")


def proof_row(attempt: Attempt) -> Row:
    """The row of a plain demonstration."""
    messages = problem_messages(attempt.theorem.problem(), PROMPT_STYLE)
    messages.append({"role": "assistant", "content": attempt.completion})
    return _row(attempt.theorem, "proof", messages)


def spoilt_attempts(
    theorems: Sequence[Theorem], count: int, rng: random.Random
) -> list[tuple[Attempt, Attempt]]:
    """Pairs of a right attempt, which starts anew from the goal, and a spoilt one.

    10 % more than `count`, as some still are proofs. An answer that mends one place of the failed attempt is
    not what is shown: a small model copies the rest and the mistake with it (LOG.md, 2026-11-30).
    """
    pairs: list[tuple[Attempt, Attempt]] = []
    while len(pairs) < count + count // 10:
        told = demonstrate(rng.choice(theorems).renamed(rng), rng)
        spoilt = spoil(list(told.lines), told.theorem, rng)
        if spoilt is not None:
            pairs.append((from_goal(told.theorem, rng), with_lines(told, spoilt)))
    return pairs


def fix_rows(
    pairs: Sequence[tuple[Attempt, Attempt]],
    answers: Sequence[Future[LeanResult]],
    settings: ErrorFixConfig,
) -> list[Row]:
    """A row for each spoilt attempt that Lean did fail."""
    rows = [
        fix_row(right, failed, answer.result(), settings)
        for (right, failed), answer in zip(pairs, answers, strict=True)
    ]
    return [row for row in rows if row is not None]


def fix_row(right: Attempt, failed: Attempt, result: LeanResult, settings: ErrorFixConfig) -> Row | None:
    """The row that shows a failed attempt, Lean's message and the right proof.

    None if Lean did not fail it with an error message.
    """
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
    fixed = demonstrate_fix(right, failed.lines, first)
    messages = [
        *problem_messages(right.theorem.problem(), PROMPT_STYLE),
        {"role": "assistant", "content": failed.completion},
        {"role": "user", "content": feedback},
        {"role": "assistant", "content": fixed.completion},
    ]
    return _row(right.theorem, "error_fix", messages)


def _row(theorem: Theorem, kind: str, messages: list[dict[str, str]]) -> Row:
    place = {"problem": theorem.name, "difficulty": theorem.difficulty, "kind": kind}
    return place | {"messages": messages}


def submit(attempts: Sequence[Attempt], verifier: Verifier) -> list[Future[LeanResult]]:
    """Lean's answers to come, in order."""
    return [
        verifier.submit(LeanCheck(f"{index}", attempt.theorem.problem(), attempt.code))
        for index, attempt in enumerate(attempts)
    ]


def require_proofs(attempts: Sequence[Attempt], answers: Sequence[Future[LeanResult]]) -> None:
    """Raise ValueError unless Lean accepts every attempt."""
    for attempt, answer in zip(attempts, answers, strict=True):
        result = answer.result()
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


def main() -> None:
    yaml_file = Path(__file__).with_name("prepare.yaml")
    try:
        config, dry = parse_arguments(Config, yaml_file, sys.argv[1:])
        print(to_yaml(config))
        verifier = make_verifier(config.lean)
        try:
            if sick := verifier.healthy():
                raise UserError(f"Lean ({verifier.name}) does not pass its canaries: {sick}")
            if not dry:
                prepare(config, verifier)
        finally:
            verifier.close()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
