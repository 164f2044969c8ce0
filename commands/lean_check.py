"""Shows what Lean says about each theorem of a file: python -m commands.lean_check FILE.

Each theorem is checked as a proof of its own statement, together with what stands before it in the file and
is used by it, by the same verifier that gives the rewards.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.config import LeanConfig
from core.format_checks.lexer import Token, TokenKind, significant_tokens
from core.lean.assemble import split_statement
from core.lean.backends import make_verifier
from core.lean.verdict import LeanCheck, LeanResult, Verdict
from core.problems import Problem

SETTINGS = LeanConfig(
    backend="auto",
    servers=None,
    server_slots=2,
    project=None,
    repl=None,
    recycle_after=200,
    workers=2,
    batch_size=16,
    timeout_s=60.0,
    memory_mb=2048,
    max_output_bytes=1 << 20,
    cache_entries=0,
    retry_s=1.0,
)
COLOURS = {Verdict.PROVED: "green", Verdict.UNKNOWN: "yellow"}


@dataclass(frozen=True)
class Declaration:
    """A top-level piece of a file: `text[start:end]`, its words, and the name if it is a theorem."""

    start: int
    end: int
    words: frozenset[str]
    theorem: str | None


def declarations(source: str) -> list[Declaration]:
    """The file cut before each command that starts a line at column 0 (its attributes go with it)."""
    groups: list[list[Token]] = []
    complete = True
    for token in significant_tokens(source):
        starts = token.column == 0 and (token.kind is TokenKind.KEYWORD or token.text == "@[")
        if not groups or (starts and complete):
            groups.append([])
            complete = False
        groups[-1].append(token)
        complete = complete or (token.kind is TokenKind.KEYWORD and token.text not in MODIFIERS)
    ends = [group[0].start for group in groups[1:]] + [len(source)]
    return [
        Declaration(
            group[0].start,
            end,
            frozenset(part for token in group for part in token.text.split(".")),
            _theorem_name(group),
        )
        for group, end in zip(groups, ends, strict=True)
    ]


MODIFIERS = frozenset({"private", "protected", "noncomputable", "nonrec", "local", "scoped"})


def _theorem_name(tokens: list[Token]) -> str | None:
    for i, token in enumerate(tokens[:-1]):
        if token.text in ("theorem", "lemma"):
            return tokens[i + 1].text
        if token.kind is TokenKind.KEYWORD and token.text not in MODIFIERS:
            return None
    return None


def make_checks(source: str) -> list[LeanCheck]:
    """One check a theorem. Its problem is its own statement behind the file's definitions; its code is the
    file up to its end, without the theorems that it does not use. Raises ValueError for a file without
    theorems."""
    pieces = declarations(source)
    checks = []
    for i, piece in enumerate(pieces):
        if piece.theorem is None:
            continue
        needed, words = {i}, set(piece.words)
        for j in range(i - 1, -1, -1):
            theorem = pieces[j].theorem
            if theorem is None or theorem.split(".")[-1] in words:
                needed.add(j)
                words |= pieces[j].words
        code = "".join(
            source[p.start : p.end]
            if j in needed
            else "".join(c if c == "\n" else " " for c in source[p.start : p.end])
            for j, p in enumerate(pieces[: i + 1])
        )
        code = "".join(c if c == "\n" else " " for c in source[: pieces[0].start]) + code
        definitions = "".join(source[p.start : p.end] for p in pieces[:i] if p.theorem is None)
        statement = definitions + source[piece.start : piece.end]
        split_statement(statement)
        problem = Problem(piece.theorem, statement, "", "", "file")
        checks.append(LeanCheck(piece.theorem, problem, code))
    if not checks:
        raise ValueError("no theorem in it; one looks like: theorem name (p : Prop) (h : p) : p := h")
    return checks


def show(console: Console, path: Path, result: LeanResult) -> None:
    """Print one verdict and its messages."""
    head = Text(f"{result.verdict.value:8}", style=f"bold {COLOURS.get(result.verdict, 'red')}")
    head.append(f" {result.id}", style="bold default")
    head.append(f"  {1000 * result.seconds:.0f} ms", style="dim")
    if result.rule:
        head.append(f"  ({result.rule})", style="default")
    console.print(head)
    for message in result.messages:
        place = Text(f"  {path}:{message.line}:{message.column}: {message.severity}: ", style="dim")
        console.print(place.append(message.text.replace("\n", "\n    "), style="default"))


def main() -> int:
    """Exit code 0 if every theorem is proved, 1 if not, 2 if the file cannot be checked."""
    parser = argparse.ArgumentParser(description="Check each theorem of a file with Lean.")
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    try:
        source = path.read_text(encoding="utf-8")
        checks = make_checks(source)
        verifier = make_verifier(SETTINGS)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    try:
        results = [verifier.submit(check) for check in checks]
        console = Console(soft_wrap=True, highlight=False)
        for future in results:
            show(console, path, future.result())
    finally:
        verifier.close()
    proved = sum(future.result().verdict is Verdict.PROVED for future in results)
    console.print(f"{proved} of {len(results)} proved, by the {verifier.name} Lean")
    return 0 if proved == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
