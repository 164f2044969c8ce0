"""Reading problems from files and from the hub, with every bad row named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pyarrow as pa

from core.config import ColumnsConfig, Config
from core.errors import UserError
from core.lean.assemble import split_statement
from core.problems import Problem
from core.prompts import prompt_ids

_HEADER_WORDS = ("import ", "open ", "set_option ")


def load_problems(location: str, columns: ColumnsConfig) -> list[Problem]:
    """Read problems from a .jsonl or .parquet file, a folder of them, or `hf://owner/name`.

    Raises UserError, naming file and row, for what cannot be read, is empty, lacks a
    statement, has one that declares no theorem, or has the name of another problem.
    """
    problems: dict[str, Problem] = {}
    for file in _files(location):
        rows = _read_rows(file)
        found = {key for record in rows.values() for key in record}
        for column in (c for c in dataclasses.asdict(columns).values() if c and c not in found):
            raise UserError(f"{file}: no column {column!r}; it has {', '.join(sorted(map(str, found)))}")
        for row, record in rows.items():
            problem = _problem(record, columns, f"{file}, row {row}")
            try:
                split_statement(problem.statement)
            except ValueError as error:
                raise UserError(f"{file}, row {row}: {error}") from error
            if problem.name in problems:
                raise UserError(f"{file}, row {row}: a second problem named {problem.name!r}")
            problems[problem.name] = problem
    return list(problems.values())


def _files(location: str) -> list[Path]:
    if location.startswith("hf://"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        owner, _, name = location.removeprefix("hf://").partition("/")
        try:
            folder = snapshot_download(f"{owner}/{name}", repo_type="dataset")
        except (HfHubHTTPError, OSError, httpx.HTTPError) as error:
            reason = str(error).split(". ")[0].splitlines()[0]
            raise UserError(f"{location}: cannot be fetched from the hub: {reason}") from error
        path = Path(folder)
    else:
        path = Path(location)
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in (".jsonl", ".parquet"))
        if not files:
            raise UserError(f"{location}: no .jsonl or .parquet file in it")
        return files
    if not path.is_file():
        raise UserError(f"{location}: no such file")
    return [path]


def _read_rows(file: Path) -> dict[int, dict[Any, Any]]:
    """Records by row number, counted from 1 as an editor counts lines."""
    try:
        if file.suffix == ".parquet":
            rows = dict(enumerate(pd.read_parquet(file).to_dict("records"), start=1))
        else:
            lines = file.read_text(encoding="utf-8").split("\n")
            rows = {row: _record(line, file, row) for row, line in enumerate(lines, 1) if line.strip()}
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error
    if not rows:
        raise UserError(f"{file}: is empty")
    return rows


def _record(line: str, file: Path, row: int) -> dict[Any, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, row {row}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise UserError(f"{file}, row {row}: expected a JSON object")
    return record


def _problem(record: dict[Any, Any], columns: ColumnsConfig, where: str) -> Problem:
    def text(column: str | None, default: str = "") -> str:
        value = record.get(column) if column else None
        return default if value is None or value != value else str(value)

    statement = text(columns.statement)
    if not statement.strip():
        raise UserError(f"{where}: no statement in column {columns.statement!r}")
    header, statement = _split_header(statement)
    difficulty = text(columns.difficulty)
    return Problem(
        name=text(columns.name),
        statement=statement,
        header=text(columns.header) + header,
        informal=text(columns.informal),
        source=text(columns.source),
        difficulty=float(difficulty) if difficulty else None,
    )


def _split_header(source: str) -> tuple[str, str]:
    """Cut imports, `open`, options and blank lines off the front of a statement that brings them along."""
    lines = source.splitlines(keepends=True)
    header = takewhile(lambda line: not line.strip() or line.startswith(_HEADER_WORDS), lines)
    count = len(list(header))
    return "".join(lines[:count]), "".join(lines[count:])


def load_training_problems(config: Config, tokenizer: Any, say: Callable[[str], None]) -> list[Problem]:
    """The problems to train on: those whose prompt has at most `prompt.max_tokens` tokens; says how many are
    left out. Raises UserError where `load_problems` does, and if none is left."""
    problems = load_problems(config.data.train, config.data.train_columns)
    limit, style = config.prompt.max_tokens, config.prompt.style
    fitting = [problem for problem in problems if len(prompt_ids(tokenizer, problem, style)) <= limit]
    if not fitting:
        raise UserError(
            f"data.train {config.data.train}: the prompts of all {len(problems)} problems are longer than "
            f"prompt.max_tokens={limit}"
        )
    if len(fitting) < len(problems):
        left_out = f"{len(problems) - len(fitting)} of {len(problems)} training problems"
        say(f"left out: {left_out}, whose prompts have more than {limit} tokens")
    return fitting
