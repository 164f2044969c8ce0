"""Turns Lean's answer on a failed proof into the message that asks the model to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from core.format_checks.report import FormatReport
from core.lean.verdict import LeanResult, Verdict

_OPENING = "Fix the proof. Lean says:"
_WITHOUT_ERRORS = {
    Verdict.FAILED: "Lean found no proof of the theorem: {rule}.",
    Verdict.REFUSED: "The proof uses what is not allowed: {rule}. Prove it without.",
    Verdict.TIMEOUT: "Lean ran out of time on the proof. Use smaller steps and less automation.",
    Verdict.CRASHED: "Lean crashed on the proof. Write it in another way.",
}
# Advice of Lean's that only a person at an editor can follow.
_FOR_PEOPLE = ("Additional diagnostic information may be available using the `set_option diagnostics",)
_CUT = "…"


@dataclass(frozen=True)
class _Error:
    line: int
    goals: str
    text: str
    window: str

    def render(self, *, with_goals: bool) -> str:
        goals = f"goals before it:\n{self.goals}\n" if self.goals and with_goals else ""
        return f"line {self.line}: {goals}{self.text}\n{self.window}"


def error_fix_message(
    code: str,
    result: LeanResult,
    *,
    max_errors: int,
    context_lines: int,
    max_characters: int | None,
    overlong: str,
) -> str | None:
    """The message of the error-fix turn, or None if there is nothing to fix or to say.

    For each of the first `max_errors` errors of `result`, by position: its line in `code` as the
    model wrote it (from 1), the goals before it if Lean gave them, Lean's text, and `context_lines`
    lines of code before and after the faulty one, which is marked with `>`. Without an error: what
    became of the proof. Nothing for PROVED, and nothing for UNKNOWN, which says nothing about it.

    A message longer than `max_characters` is None if `overlong` is "drop" (the recipe), and cut if
    it is "cut": first later errors go, then goals, then the ends of Lean's text and of the code.
    ValueError for another `overlong`.

    >>> error = LeanMessage("error", 2, 2, 2, 3, "unknown identifier 'h2'")
    >>> print(error_fix_message(
    ...     "theorem t (h : p) : p :=\\n  h2", LeanResult("1", Verdict.FAILED, (error,), None, 0.1),
    ...     max_errors=3, context_lines=1, max_characters=3000, overlong="drop"))
    Fix the proof. Lean says:
    line 2: unknown identifier 'h2'
    1 | theorem t (h : p) : p :=
    2 >   h2
    """
    if overlong not in ("drop", "cut"):
        raise ValueError(f"overlong={overlong!r}: must be 'drop' or 'cut'")
    if result.verdict in (Verdict.PROVED, Verdict.UNKNOWN):
        return None
    errors = _errors(code, result, context_lines)[:max_errors]
    if errors:
        return _fit(_versions(errors, max_characters), max_characters, overlong)
    rule = result.rule or "it is incomplete or stands under another name"
    return _fit([_WITHOUT_ERRORS[result.verdict].format(rule=rule)], max_characters, overlong)


def within_tokens(
    make: Callable[[int | None], str | None],
    *,
    max_characters: int | None,
    max_tokens: int | None,
    count_tokens: Callable[[str], int],
) -> str | None:
    """The longest of the messages `make(characters)` that keeps both budgets, or None if none does.

    `make` is a message of this file with all but its limit of characters given; what it does beyond
    the limit (drop or cut at a sensible place) decides here too.
    """
    message = make(max_characters)
    if message is None or max_tokens is None or count_tokens(message) <= max_tokens:
        return message
    best, low, high = None, 1, len(message) - 1
    while low <= high:  # a longer limit gives more tokens, but for a few at a token's border
        middle = (low + high) // 2
        shorter = make(middle)
        if shorter is not None and count_tokens(shorter) <= max_tokens:
            best, low = shorter, middle + 1
        else:
            high = middle - 1
    return best


def format_fix_message(
    report: FormatReport, *, max_findings: int, max_characters: int | None, overlong: str
) -> str | None:
    """The same for a completion that failed the format checks (an ablation); None if it passed."""
    if report.passed:
        return None
    lines = [f"line {f.line}: {f.message}" for f in report.findings[:max_findings]]
    versions = ["\n".join(["Fix the format:", *lines[:n]]) for n in range(len(lines), 0, -1)]
    return _fit(versions, max_characters, overlong)


def _errors(code: str, result: LeanResult, context_lines: int) -> list[_Error]:
    messages = [m for m in result.messages if m.severity == "error"]
    goals = result.goals if len(result.goals) == len(messages) else ("",) * len(messages)
    code_lines = code.split("\n")
    found: dict[tuple[int, int, str], _Error] = {}
    for message, goal in zip(messages, goals, strict=True):
        text = "\n".join(
            line for line in message.text.strip().split("\n") if not line.startswith(_FOR_PEOPLE)
        )
        # A backend that knows no place says line 0; one behind the code means its end.
        line = min(max(message.line, 1), len(code_lines))
        window = _window(code_lines, line, context_lines)
        key = (message.line, message.column, text)
        found.setdefault(key, _Error(line, goal.strip(), text.rstrip(), window))
    return [found[key] for key in sorted(found, key=lambda key: key[:2])]


def _window(code_lines: Sequence[str], line: int, context_lines: int) -> str:
    first, last = max(line - context_lines, 1), min(line + context_lines, len(code_lines))
    width = len(str(last))
    return "\n".join(
        f"{number:>{width}} {'>' if number == line else '|'} {code_lines[number - 1]}".rstrip()
        for number in range(first, last + 1)
    )


def _versions(errors: Sequence[_Error], max_characters: int | None) -> Iterator[str]:
    """The message, then ever shorter versions of it."""
    for count in range(len(errors), 0, -1):
        shown = [error.render(with_goals=True) for error in errors[:count]]
        yield "\n".join([_OPENING, *shown])
    first = errors[0]
    yield f"{_OPENING}\n{first.render(with_goals=False)}"
    head = f"{_OPENING}\nline {first.line}: "
    marked = next(line for line in first.window.split("\n") if line.split()[1:2] == [">"])
    if max_characters is not None:
        room = max_characters - len(f"{head} {_CUT}\n{marked}")
        lines_end = first.text.rfind("\n", 0, max(room, 0) + 1)
        if lines_end > 0:
            yield f"{head}{first.text[:lines_end]} {_CUT}\n{marked}"
    yield head + first.text


def _fit(versions: Iterable[str], max_characters: int | None, overlong: str) -> str | None:
    """The first version that fits; if none does, None for "drop", the beginning of the last for "cut"."""
    version = ""
    for version in versions:
        if max_characters is None or len(version) <= max_characters:
            return version
        if overlong == "drop":
            return None
    assert max_characters is not None
    return (version[: max(max_characters - len(_CUT), 0)].rstrip() + _CUT)[:max_characters]
