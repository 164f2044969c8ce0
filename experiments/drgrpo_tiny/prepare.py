"""Writes the tiny experiment's data: problems, demonstrations and tokenizer, into one folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.prompts import problem_messages
from experiments.drgrpo_tiny.demonstrations import demonstrate
from experiments.drgrpo_tiny.theorems import split
from experiments.drgrpo_tiny.tokenizer import save_tokenizer, train_tokenizer

VOCABULARY = 640


def prepare(
    folder: Path,
    *,
    seed: int,
    train_problems: int,
    heldout_problems: int,
    demonstrations: int,
    error_fix_demonstrations: int,
) -> None:
    """Write train.jsonl, heldout.jsonl, demonstrations.jsonl and tokenizer/ into `folder`.

    The problem files hold one `Problem` a row; a demonstration holds `problem` (a name),
    `kind` ("proof" or "error_fix") and `messages`, of which the last is the target. Demonstrations
    stand on training problems only, each time in fresh letters. The same seed gives the same files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train, heldout = split(seed, train_problems, heldout_problems)
    _write(folder / "train.jsonl", (asdict(theorem.problem()) for theorem in train))
    _write(folder / "heldout.jsonl", (asdict(theorem.problem()) for theorem in heldout))

    rng = random.Random(f"{seed} demonstrations")
    rows = []
    for index in range(demonstrations):
        theorem = train[index % len(train)].renamed(rng)
        attempt = demonstrate(theorem, rng)
        messages = problem_messages(theorem.problem(), "compact")
        messages.append({"role": "assistant", "content": attempt.completion})
        rows.append({"problem": theorem.name, "kind": "proof", "messages": messages})
    _write(folder / "demonstrations.jsonl", rows)

    texts = (f"{m['role']}\n{m['content']}" for row in rows[:4_000] for m in row["messages"])
    save_tokenizer(train_tokenizer(texts, VOCABULARY), folder / "tokenizer")


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
