"""Refuses text that could fool or harm Lean, by a table of rules over Lean's tokens, before Lean is asked.

The scan is the first of three walls and the only one that judges words; `assemble.py`'s evidence and the
sandbox stand behind it. So it may let through what those catch (`native_decide` and its relatives leave a
forbidden axiom, a weakened statement does not check), and it must not refuse honest proofs: it reads code,
never comments, strings or parts of longer names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from core.format_checks.lexer import Token, TokenKind, significant_tokens
from core.problems import Problem


@dataclass(frozen=True)
class Refusal:
    """The first rule that the text breaks, and where (line from 1, column from 0, in code points)."""

    rule: str
    line: int
    column: int
    reason: str


@dataclass(frozen=True)
class WordRule:
    """Words that refuse a text wherever they stand as a whole token of code."""

    name: str
    reason: str
    words: frozenset[str]


def _rule(name: str, reason: str, words: str) -> WordRule:
    return WordRule(name, reason, frozenset(words.split()))


WORD_RULES = (
    _rule("sorry", "leaves the proof open", "sorry admit stop sorryAx"),
    _rule(
        "search",
        "asks Lean to search and prints what it found; a proof states what was found",
        "apply? exact? rw? rw?? rw_search simp? simp?! simp_all? simp_all?! simpa? simpa?! dsimp? dsimp?! "
        "norm_num? aesop? observe? convert? show_term says hint polyrith library_search suggest",
    ),
    _rule("axiom", "adds an assumption or hides a definition from the kernel", "axiom opaque init_quot"),
    _rule(
        "unchecked-code",
        "lets compiled code differ from what the kernel checks",
        "unsafe partial implemented_by extern csimp unsafeCast lcProof lcUnreachable lcAny lcErased lcVoid",
    ),
    _rule(
        "syntax",
        "changes how Lean reads what follows",
        "macro macro_rules syntax declare_syntax_cat elab elab_rules notation notation3 infix infixl infixr "
        "prefix postfix binder_predicate term_elab app_unexpander unif_hint",
    ),
    _rule(
        "interpolation",
        "is a string with code in it only where Init declares it: our tokens may not be Lean's",
        "s! m! f! throwError",
    ),
    _rule(
        "instance",
        "changes what Lean finds for the statement's own notation",
        "instance default_instance",
    ),
    _rule(
        "metaprogram",
        "runs code while Lean checks the proof",
        "run_cmd run_tac run_elab run_meta by_elab initialize builtin_initialize simproc dsimproc "
        "simproc_decl dsimproc_decl IO EIO BaseIO include_str include_bytes dbg_trace "
        "declare_config_elab register_simp_attr register_option set_premise_selector",
    ),
    _rule("attribute", "changes how tactics treat declarations that are not the proof's", "attribute"),
    _rule(
        "command",
        "prints, runs or stops; no part of a proof",
        "#eval #eval! #exit #guard #guard_msgs #guard_expr #check #check_failure #check_assertions #print "
        "#reduce #synth #help #where #version #find #loogle #leansearch #search #html #widget #lint #test "
        "#simp #norm_num #conv #explode #time #count_heartbeats #unfold? #min_imports #import_path",
    ),
    _rule("header", "the header is ours", "import module public prelude meta"),
    _rule("example", "states something else than the problem", "example"),
    _rule(
        "scope",
        "adds hypotheses from outside the statement",
        "variable variables include omit",
    ),
)
TEXT_RULES = (  # the rules that are about more than a word
    ("characters", "can make Lean read another text than is seen"),
    ("unreadable", "an unclosed comment or string, or a character that Lean never reads"),
    ("quoted-name", "a name in « » can hold any text, also what looks like Lean's answer"),
    ("set-option", "an option can change what Lean checks; two limits may be set"),
)
RULES = dict([(rule.name, rule.reason) for rule in WORD_RULES] + list(TEXT_RULES))
_WORDS = {word: rule for rule in WORD_RULES for word in rule.words}

OPTIONS = frozenset({"maxHeartbeats", "maxRecDepth"})
ATTRIBUTES = frozenset(
    """
    simp simps norm_cast push_cast norm_num ext refl symm trans congr gcongr mono aesop inline
    reducible elab_as_elim match_pattern always_inline specialize grind positivity to_additive
    """.split()  # noqa: SIM905
)
_FORGING = re.compile(
    r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]|\r(?!\n)"
)
# Letters that print as Latin ones: Greek capitals and omicron, Cyrillic, Armenian, Cherokee, full width.
_LOOK_ALIKE = re.compile(r"[ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο\u0400-\u058f\u13a0-\u13ff\uff00-\uffef]")
_META_NAMES = ("IO.", "EIO.", "BaseIO.", "Lean.Elab.", "Lean.Meta.", "Lean.Macro.")


def scan(code: str, problem: Problem) -> Refusal | None:
    """The first rule that `code` breaks, or None. `code` is `assemble.own_text` of the model's text: what it
    repeats of the problem's header and definitions is blanked out already."""
    forged = _FORGING.search(code)
    if forged:
        line = code.count("\n", 0, forged.start()) + 1
        return Refusal(
            "characters",
            line,
            forged.start() - (code.rfind("\n", 0, forged.start()) + 1),
            f"U+{ord(forged[0]):04X} {RULES['characters']}",
        )
    tokens = list(significant_tokens(code))
    for i, token in enumerate(tokens):
        broken = _broken_rule(tokens, i, problem)
        if broken is not None:
            return Refusal(broken[0], token.line, token.column, broken[1])
    return _open_scope(tokens)


def _broken_rule(tokens: Sequence[Token], i: int, problem: Problem) -> tuple[str, str] | None:
    """Name and reason of the rule that token `i` breaks."""
    token = tokens[i]
    if token.kind is TokenKind.ERROR:
        return "unreadable", RULES["unreadable"]
    if token.kind not in (TokenKind.IDENTIFIER, TokenKind.KEYWORD, TokenKind.SYMBOL):
        return None
    word = token.text.removeprefix("_root_.")
    if word == "#" and i + 1 < len(tokens) and tokens[i + 1].start == token.end:
        word += tokens[i + 1].text
    if word in _WORDS:
        return _WORDS[word].name, f"`{word}` {_WORDS[word].reason}"
    if word.startswith(_META_NAMES):
        return "metaprogram", f"`{word}` runs code while Lean checks the proof"
    if "«" in word and token.text not in problem.statement:
        return "quoted-name", RULES["quoted-name"]
    if _LOOK_ALIKE.search(word) and token.text not in problem.statement:
        return "characters", f"`{word}` holds a letter that prints like another"
    if word == "set_option":
        option = [t.text for t in tokens[i + 1 : i + 3]]
        if option[:1] and option[0] in OPTIONS:
            return None
        if option and " ".join(option) in " ".join(problem.header.split()):
            return None
        return "set-option", f"only {' and '.join(sorted(OPTIONS))} may be set"
    if word == "@[":
        allowed = ATTRIBUTES | set(_attributes(list(significant_tokens(problem.statement)), 0))
        forbidden = [n for n in _attributes(tokens, i) if n not in allowed and n not in _WORDS]
        if forbidden:
            return "attribute", f"the attribute {forbidden[0]} changes more than the proof"
    return None


def _attributes(tokens: Sequence[Token], start: int) -> list[str]:
    """The first word of each attribute in the first `@[…]` at or after `start`."""
    names, depth, expect = [], 0, False
    for token in tokens[start:]:
        if depth == 0 and token.text != "@[":
            continue
        if depth == 1 and token.text == "]":
            break
        if expect and token.text not in ("local", "scoped", "-", "↓", "↑", "←"):
            names.append(token.text)
            expect = False
        depth += (token.text in ("@[", "(", "[", "{")) - (token.text in (")", "]", "}"))
        expect = expect or token.text == "@[" or (depth == 1 and token.text == ",")
    return names


def _open_scope(tokens: Sequence[Token]) -> Refusal | None:
    """An `end` without a beginning would leave our scope; a namespace left open would hold our check."""
    scopes: list[Token] = []
    for token, following in zip_longest(tokens, tokens[1:]):
        if token.text not in ("namespace", "section", "mutual", "end"):
            continue
        named = following and following.kind is TokenKind.IDENTIFIER and following.line == token.line
        parts = following.text.count(".") + 1 if following and named else 1
        if token.text != "end":
            scopes += [token] * parts
        elif len(scopes) < parts:
            return Refusal("scope", token.line, token.column, "`end` without a beginning")
        else:
            del scopes[-parts:]
    left = next((token for token in scopes if token.text != "section"), None)
    return left and Refusal("scope", left.line, left.column, f"`{left.text}` is never ended")
