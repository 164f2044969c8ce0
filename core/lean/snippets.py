"""What is sent to a Kimina Lean server and what its answer says: text and JSON alone, no network."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.format_checks.lexer import significant_tokens
from core.lean.assemble import (
    MAX_HEARTBEATS,
    Doubt,
    LeanFile,
    Reading,
    clamp_heartbeats,
    make_file,
    make_piece,
    read_messages,
)
from core.lean.verdict import LeanCheck, Verdict
from core.problems import Problem

# What the server takes for the end of a line and Lean does not, and what JSON cannot carry.
_MANGLED = re.compile(r"\r(?!\n)|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")
OURS = "set_option autoImplicit false\nset_option linter.all false\n"  # a snippet has no Lake options
_IN_MATHLIB = frozenset({"Aesop", "Batteries", "Init"})


class ServerFault(Exception):
    """The server, or the way to it, failed: this says nothing about the proof."""


def sendable(problem: Problem) -> Problem:
    """The problem without characters that would not arrive as Lean reads them."""
    header, statement = (_MANGLED.sub(" ", text) for text in (problem.header, problem.statement))
    return replace(problem, header=header, statement=statement)


@dataclass(frozen=True)
class Answer:
    """What one request brought: a reading with a verdict, or the verdict that its doubt would mean."""

    reading: Reading
    suspected: Verdict | None
    seconds: float


def assemble(check: LeanCheck, code: str) -> tuple[LeanFile, str]:
    """The file as its positions are counted, which is without the imports, and the whole text to send."""
    imports, rest = split_header(check.problem.header)
    piece = make_piece(check, code, secrets.token_hex(16), alone=True)
    header = f"{OURS}{clamp_heartbeats(rest, MAX_HEARTBEATS)}"
    file = make_file(header, [piece], secrets.token_hex(16))
    return file, imports + file.text


def split_header(header: str) -> tuple[str, str]:
    """The imports, one a line and in one order for all problems, and the rest of a header.

    The server keeps a REPL for each list of imports, loses what stands beside `import Mathlib` on its line,
    and lets snippets without imports share an environment.

    >>> split_header("import Aesop import Mathlib open Nat")
    ('import Mathlib\\n', 'open Nat')
    """
    tokens = list(significant_tokens(header))
    names, end = set(), 0
    for word, name in zip(tokens[::2], tokens[1::2], strict=False):
        if word.text != "import":
            break
        names.add("Mathlib" if name.text.split(".")[0] == "Mathlib" else name.text)
        end = name.end
    if "Mathlib" in names:
        names -= _IN_MATHLIB
    lines = [f"import {name}\n" for name in sorted(names or {"Init"}, key=lambda n: (n != "Mathlib", n))]
    return "".join(lines), header[end:].strip()


def read_answer(file: LeanFile, id: str, status: int, body: str) -> Answer:
    """What a server's answer says about `file`. Raises ServerFault where it says nothing.

    The published server reports a crash as HTTP 500, its forks in `error`.
    """
    if status == 500:
        return Answer(Reading(None, (), Doubt.CUT, f"HTTP 500: {body[:200]}"), Verdict.CRASHED, 0.0)
    try:
        (result,) = json.loads(body)["results"]
        if result["id"] != id:
            raise ServerFault(f"the answer is to another request: {body[:200]}")
        seconds, error = float(result.get("time") or 0.0), result.get("error")
        if error is None and "message" not in result["response"]:
            messages = result["response"].get("messages") or []
            (reading,) = read_messages(file, messages)
            if reading.verdict is Verdict.PROVED and result["response"].get("sorries"):
                reading = Reading(Verdict.FAILED, reading.messages, reason="Lean lists a sorry")
            if reading.doubt is Doubt.OURS:
                raise ServerFault(reading.reason)
            silent = Verdict.CRASHED if reading.doubt is Doubt.CUT else Verdict.FAILED
            return Answer(reading, silent if reading.doubt else None, seconds)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise ServerFault(f"no answer of a Kimina server: {body[:200]}") from broken
    said = str(error or result["response"]["message"])
    if error and "timed out" in said and "header" not in said:
        return Answer(Reading(None, (), Doubt.CUT, said), Verdict.TIMEOUT, seconds)
    if error and said.startswith("Snippet execution failed"):
        return Answer(Reading(None, (), Doubt.CUT, said), Verdict.CRASHED, seconds)
    raise ServerFault(said)


def goals_before(tree: Sequence[dict[str, Any]], line: int, column: int) -> str:
    """The goals before the innermost tactic of an info tree that spans the position; empty if none does."""
    best, found = (math.inf, math.inf), ""
    nodes = list(tree)
    while nodes:
        node = nodes.pop()
        nodes += node.get("children") or []
        tactic = node.get("node") or {}
        span, goals = (tactic.get("stx") or {}).get("range"), tactic.get("goalsBefore")
        if not span or not goals:
            continue
        start, finish = ((span[end]["line"], span[end]["column"]) for end in ("start", "finish"))
        size = (finish[0] - start[0], finish[1] - start[1])
        if start <= (line, column) <= finish and size < best:
            best, found = size, "\n\n".join(goals)
    return found
