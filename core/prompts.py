"""From a problem to prompt token ids, and on to the error-fix turn: the only place with prompt wording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from core.errors import UserError
from core.problems import Problem

KIMINA_SYSTEM = "You are an expert in mathematics and proving theorems in Lean 4."
KIMINA_USER = """Think about and solve the following problem step by step in Lean 4.
# Problem: {informal}
# Formal Statement:
```lean4
{statement}
```
"""
_MARK = "\ue000"  # a private-use character that no template contains


def load_tokenizer(path: str) -> tuple[Any, tuple[int, ...]]:
    """The tokenizer in a model folder, and every id that ends a turn (generation config and tokenizer)."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"policy.path {path}: no tokenizer can be loaded from it: {reason}") from error
    if tokenizer.chat_template is None:
        raise UserError(f"policy.path {path}: its tokenizer has no chat template")
    eos = {tokenizer.eos_token_id}
    try:
        configured = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        configured = None
    eos |= set(configured if isinstance(configured, list) else [configured])
    return tokenizer, tuple(sorted(id for id in eos if id is not None))


def problem_messages(problem: Problem, style: str) -> list[dict[str, str]]:
    """Chat messages that ask for a proof. `style`: "kimina" (the recipe's wording), "compact" (English text
    and statement), or "statement" (that alone)."""
    if style == "kimina":
        statement = problem.header + problem.statement
        user = KIMINA_USER.format(informal=problem.informal, statement=statement.rstrip())
        return [{"role": "system", "content": KIMINA_SYSTEM}, {"role": "user", "content": user}]
    assert style in ("compact", "statement"), style
    informal = f"{problem.informal}\n" if style == "compact" else ""
    user = informal + problem.statement
    return [{"role": "user", "content": user}]


def prompt_ids(tokenizer: Any, problem: Problem, style: str) -> tuple[int, ...]:
    """Token ids of the prompt, up to where the assistant begins to speak."""
    text = tokenizer.apply_chat_template(
        problem_messages(problem, style), tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def error_fix_prompt_ids(
    tokenizer: Any,
    prompt: Sequence[int],
    completion: Sequence[int],
    feedback: str,
    eos_ids: Sequence[int],
) -> tuple[int, ...]:
    """Prompt of the error-fix turn: the ids of the failed attempt, untouched, then the feedback.

    Only the suffix is tokenised: decode → encode is not the identity, and chat templates strip
    `<think>` from earlier turns. The suffix is what the template puts behind an assistant's words;
    its end-of-turn token is left out if the completion ends with one already.
    """
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": _MARK},
        {"role": "user", "content": feedback},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    suffix = tokenizer.encode(text.split(_MARK)[1], add_special_tokens=False)
    if completion and completion[-1] in eos_ids and suffix and suffix[0] in eos_ids:
        suffix = suffix[1:]
    return (*prompt, *completion, *suffix)
