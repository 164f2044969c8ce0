"""prover-verify FILE.jsonl: what Lean says about each row of a file, by any of the three backends.

A row has a name, a statement (Lean source up to its `:=`), a proof (the text that declares the theorem, as in
a model's code block) and, if its column is there, a header (imports, `open`, options). The answers go into
FILE.verdicts.jsonl, a line a row as they come; a second run asks only about rows that have no verdict yet.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core.config import LeanConfig
from core.errors import UserError
from core.lean.assemble import split_statement
from core.lean.backends import make_verifier
from core.lean.verdict import LeanCheck, LeanResult, Verdict, Verifier
from core.problems import Problem
from core.progress import progress

COLOURS = {Verdict.PROVED: "green", Verdict.FAILED: "red", Verdict.REFUSED: "red", Verdict.UNKNOWN: "yellow"}


@dataclass(frozen=True)
class Row:
    """One row of the file, counted from 1. `key` names its content: an answer belongs to that."""

    number: int
    check: LeanCheck
    key: str


def read_rows(path: Path, columns: dict[str, str]) -> list[Row]:
    """Every row of the file. UserError that names file and row for what cannot be checked."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(make_row(number, json.loads(line), columns))
            except ValueError as error:
                raise UserError(f"{path}, row {number}: {error}") from error
    if not rows:
        raise UserError(f"{path}: no rows")
    return rows


def make_row(number: int, row: Any, columns: dict[str, str]) -> Row:
    """Raises ValueError that says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with {', '.join(columns.values())}")
    texts: dict[str, str] = {}
    for what, column in columns.items():
        text = row.get(column, "" if what == "header" else None)
        if not isinstance(text, str):
            there = ", ".join(row) or "none"
            raise ValueError(f"no text in column {column} (columns: {there}; choose with --{what})")
        texts[what] = text
    split_statement(texts["statement"])
    key = hashlib.sha256("\0".join(texts.values()).encode("utf-8", "surrogatepass")).hexdigest()[:24]
    problem = Problem(texts["name"], texts["statement"], texts["header"], "", "")
    return Row(number, LeanCheck(texts["name"], problem, texts["proof"]), key)


def read_answers(path: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """The verdicts that an earlier run wrote, by row and key; the file is left with nothing else in it.

    A last line that was cut off and rows without a verdict (unknown) are dropped: they are asked again.
    """
    if not path.exists():
        return {}
    answers: dict[tuple[int, str], dict[str, Any]] = {}
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            answer = json.loads(line)
            if answer["verdict"] != Verdict.UNKNOWN.value:
                answers[answer["row"], answer["key"]] = answer
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # empty, or cut off
            raise UserError(
                f"{path}, line {number}: not an answer of prover-verify; choose another --out"
            ) from error
    new = path.with_name(path.name + ".new")
    new.write_text("".join(as_line(answer) for answer in answers.values()), encoding="utf-8")
    new.replace(path)
    return answers


def as_line(answer: dict[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=True) + "\n"


def as_answer(row: Row, result: LeanResult, lean: str) -> dict[str, Any]:
    """The full answer, as a line of the output."""
    place = {"row": row.number, "name": row.check.id, "key": row.key, "lean": lean}
    return place | asdict(result) | {"verdict": result.verdict.value}


def verify(
    rows: Sequence[Row], verifier: Verifier, path: Path, out: Path, console: Console
) -> list[dict[str, Any]]:
    """Ask about each row and write each answer the moment it comes."""
    asked = {}
    for row in rows:
        try:
            asked[verifier.submit(row.check)] = row
        except ValueError as error:
            raise UserError(f"{path}, row {row.number}: {error}") from error
    answers = []
    say, terminal = console.print, console if console.is_terminal else None
    with out.open("a", encoding="utf-8") as file, progress("rows", len(rows), say, terminal) as advance:
        for future in as_completed(asked):
            answers.append(as_answer(asked[future], future.result(), verifier.name))
            file.write(as_line(answers[-1]))
            file.flush()
            advance(1)
    return answers


def show(console: Console, answers: Sequence[dict[str, Any]], rows: int) -> None:
    """The verdicts and, for those that have one, the commonest rules and reasons."""
    table = Table("verdict", title=f"{rows} rows", title_justify="left")
    for column in ("rows", "share", "mean s"):
        table.add_column(column, justify="right")
    table.add_column("why (commonest)")
    for verdict in Verdict:
        own = [answer for answer in answers if answer["verdict"] == verdict.value]
        if own:
            reasons = Counter(answer["rule"] for answer in own if answer["rule"]).most_common(3)
            seconds = sum(answer["seconds"] for answer in own) / len(own)
            name = f"[{COLOURS.get(verdict, 'magenta')}]{verdict.value}[/]"
            why = "; ".join(f"{escape(reason[:60])} ({count})" for reason, count in reasons)
            table.add_row(name, str(len(own)), f"{len(own) / rows:.1%}", f"{seconds:.2f}", why)
    console.print(table)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="prover-verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="rows as .jsonl")
    parser.add_argument("--out", type=Path, help="where the answers go (FILE.verdicts.jsonl)")
    for what in ("name", "statement", "proof", "header"):
        parser.add_argument(
            f"--{what}", default=what, metavar="COLUMN", help=f"column of the {what} ({what})"
        )
    backends = ("auto", "kimina", "local", "embedded")
    parser.add_argument("--backend", choices=backends, default="auto", help="the first that answers (auto)")
    parser.add_argument("--server", action="append", metavar="URL", help="Kimina server; LEAN_SERVER_API_URL")
    parser.add_argument("--slots", type=int, default=8, help="requests in flight a server (8)")
    parser.add_argument("--project", help="Lake project of the local backend")
    parser.add_argument("--repl", help="the community REPL's binary for it")
    parser.add_argument("--recycle-after", type=int, default=200, help="checks of a local REPL (200)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="Lean processes (one a CPU)")
    parser.add_argument("--batch-size", type=int, default=16, help="proofs a file, embedded Lean (16)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a proof (60)")
    parser.add_argument("--memory-mb", type=int, default=4096, help="memory of a Lean process (4096)")
    return parser.parse_args(argv)


def lean_config(arguments: argparse.Namespace) -> LeanConfig:
    return LeanConfig(
        backend=arguments.backend,
        servers=arguments.server,
        server_slots=arguments.slots,
        project=arguments.project,
        repl=arguments.repl,
        recycle_after=arguments.recycle_after,
        workers=arguments.workers,
        batch_size=arguments.batch_size,
        timeout_s=arguments.timeout,
        memory_mb=arguments.memory_mb,
        max_output_bytes=4_000_000,
        cache_entries=10_000,
        retry_s=1.0,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if every row has a verdict, 1 if some are unknown, 2 for bad input, 130 on Ctrl-C."""
    arguments = parse(argv)
    path: Path = arguments.file
    out = arguments.out or path.with_name(path.stem + ".verdicts.jsonl")
    console, verifier = Console(), None
    try:
        rows = read_rows(
            path, {what: getattr(arguments, what) for what in ("name", "statement", "proof", "header")}
        )
        known = read_answers(out)
        old = [known[row.number, row.key] for row in rows if (row.number, row.key) in known]
        left = [row for row in rows if (row.number, row.key) not in known]
        new = []
        if left:
            verifier = make_verifier(lean_config(arguments))
            if sick := verifier.healthy():
                raise UserError(f"Lean ({verifier.name}) does not pass its canaries: {sick}")
            kept = f", {len(old)} have a verdict already" if old else ""
            console.print(f"{len(left)} rows to the {verifier.name} Lean{kept}", highlight=False)
            new = verify(left, verifier, path, out, console)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from {out}", file=sys.stderr)
        return 130
    finally:
        if verifier is not None:
            verifier.close()
    show(console, [*old, *new], len(rows))
    console.print(f"answers: {escape(str(out))}", soft_wrap=True, highlight=False)
    unknown = sum(answer["verdict"] == Verdict.UNKNOWN.value for answer in new)
    if unknown:
        console.print(f"{unknown} without a verdict; the same command asks about them again", style="yellow")
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
