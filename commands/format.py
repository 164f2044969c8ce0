"""prover-format FILE: what the format checks find in one output, or in a file of rollouts.

A .parquet or .jsonl file holds rollouts, with columns completion and statement, and header, finish_reason,
turn and problem where it has them. Any other file is one output as text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core.errors import UserError
from core.format_checks import KINDS, PRESETS, FormatReport, FormatThresholds, check_format
from core.problems import Problem

STATEMENT_KINDS = ("statement_missing", "statement_changed")


@dataclass(frozen=True)
class Row:
    """One output of a file, counted from 1, and its report."""

    number: int
    problem: str
    turn: int
    report: FormatReport

    def as_json(self) -> dict[str, Any]:
        findings = [asdict(finding) for finding in self.report.findings]
        place = {"row": self.number, "problem": self.problem, "turn": self.turn}
        return place | {"passed": self.report.passed, "findings": findings}


def read_text(path: Path) -> str:
    """The file's text, its Windows line ends kept. UserError if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a rollouts file. UserError that names file and row for what cannot be read."""
    if path.suffix == ".parquet":
        try:
            yield from pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path}: not a parquet file: {str(error).splitlines()[0]}") from error
        return
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, row {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}, row {number}: expected an object with completion and statement")
            yield row


def check_rollouts(path: Path, thresholds: FormatThresholds) -> list[Row]:
    """The report of each row of a rollouts file."""
    rows = []
    for number, row in enumerate(read_rollouts(path), start=1):
        for column in ("completion", "statement"):
            if not isinstance(row.get(column), str):
                raise UserError(f"{path}, row {number}: no text in column {column}")
        name = str(row.get("problem") or "")
        problem = Problem(name, row["statement"], row.get("header") or "", "", "")
        truncated = row.get("finish_reason") == "length"
        try:
            report = check_format(row["completion"], problem, thresholds, truncated=truncated)
        except ValueError as error:
            raise UserError(f"{path}, row {number}: {error}") from error
        rows.append(Row(number, name, row.get("turn") or 0, report))
    if not rows:
        raise UserError(f"{path}: no rows")
    return rows


def check_output(path: Path, statement_file: Path | None, thresholds: FormatThresholds) -> Row:
    """The report of one output; without a statement the checks that need one are left out."""
    statement = read_text(statement_file) if statement_file else "theorem unknown : unknown :="
    if statement_file is None:
        thresholds = replace(thresholds, alignment_skips_statement=False)
    problem = Problem(path.stem, statement, "", "", "")
    try:
        report = check_format(read_text(path), problem, thresholds, truncated=False)
    except ValueError as error:
        raise UserError(f"{statement_file}: {error}") from error
    if statement_file is None:
        kept = tuple(f for f in report.findings if f.kind not in STATEMENT_KINDS)
        report = replace(report, findings=kept)
    return Row(1, path.stem, 0, report)


def show_output(console: Console, path: Path, row: Row) -> None:
    """One output: a line a finding; the first is why it is rejected."""
    if row.report.passed:
        console.print(f"[green]passed[/]  {escape(str(path))}")
        return
    table = Table(title=f"rejected: {row.report.findings[0].kind}", title_justify="left")
    for column in ("place", "finding", "value", "what"):
        table.add_column(column, no_wrap=column == "place")
    for f in row.report.findings:
        value = "" if f.value is None else f"{f.value:.3g}"
        table.add_row(f"{f.line}:{f.column}", f.kind, value, escape(f.message))
    console.print(table)


def show_rollouts(console: Console, path: Path, rows: Sequence[Row]) -> None:
    """A file of rollouts: for each kind and turn how often it came and how often it decided."""
    console.print(f"{len(rows)} rollouts in {escape(str(path))}", soft_wrap=True)
    table = Table("finding")
    turns = sorted({row.turn for row in rows})
    for turn in turns:
        table.add_column(f"turn {turn}", justify="right")
        table.add_column("decided", justify="right")
    table.add_column("first row", justify="right")
    found: Counter[tuple[str, int]] = Counter()
    decided: Counter[tuple[str, int]] = Counter()
    first: dict[str, int] = {}
    for row in rows:
        kinds = [f.kind for f in row.report.findings]
        found.update((kind, row.turn) for kind in kinds or ["passed"])
        decided[(kinds or ["passed"])[0], row.turn] += 1
        for kind in kinds or ["passed"]:
            first.setdefault(kind, row.number)
    for kind in ("passed", *KINDS):
        if kind in first:
            counts = [str(n[kind, turn]) for turn in turns for n in (found, decided)]
            table.add_row(kind, *counts, str(first[kind]))
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if the output passes (or for a file of rollouts), 1 if not, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="prover-format",
        description="What the format checks find in an output, or in a file of rollouts.",
    )
    parser.add_argument("file", type=Path, help="an output as text, or rollouts as .parquet or .jsonl")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="kimina", help="thresholds")
    parser.add_argument("--statement", type=Path, help="file with the problem's statement, for one output")
    parser.add_argument("--row", type=int, help="show this row of a rollouts file, counted from 1")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, one for each output")
    arguments = parser.parse_args(argv)
    path, thresholds = arguments.file, PRESETS[arguments.preset]
    console = Console()
    try:
        if path.suffix in (".parquet", ".jsonl"):
            rows = check_rollouts(path, thresholds)
            if arguments.row is not None:
                if not 1 <= arguments.row <= len(rows):
                    raise UserError(f"{path}: no row {arguments.row}, it has {len(rows)}")
                rows = [rows[arguments.row - 1]]
        else:
            rows = [check_output(path, arguments.statement, thresholds)]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    one = path.suffix not in (".parquet", ".jsonl") or arguments.row is not None
    if arguments.json:
        for row in rows:
            print(json.dumps(row.as_json(), ensure_ascii=False))
    elif one:
        show_output(console, path, rows[0])
        if path.suffix not in (".parquet", ".jsonl") and arguments.statement is None:
            console.print("The statement was not checked: give it with --statement FILE.", style="dim")
    else:
        show_rollouts(console, path, rows)
    return int(one and not rows[0].report.passed)


if __name__ == "__main__":
    sys.exit(main())
