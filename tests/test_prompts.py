"""Prompts: what the model reads, and error-fix prompts that never re-tokenise a completion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.problems import Problem
from core.prompts import error_fix_prompt_ids, load_tokenizer, problem_messages, prompt_ids


def test_compact_prompt(tokenizer: Any, problem: Problem) -> None:
    text = tokenizer.decode(prompt_ids(tokenizer, problem, "compact"))
    assert text == (
        "<|im_start|>user\nIf p and q, then q and p.\n"
        "theorem swap (p q : Prop) (h : And p q) : And q p :=<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_statement_alone(tokenizer: Any, problem: Problem) -> None:
    text = tokenizer.decode(prompt_ids(tokenizer, problem, "statement"))
    assert text == (
        "<|im_start|>user\ntheorem swap (p q : Prop) (h : And p q) : And q p :=<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_kimina_prompt_has_system_problem_and_statement() -> None:
    problem = Problem("t", "theorem t : 1 + 1 = 2 := by\n", "import Mathlib\n\n", "Add.", "test")
    system, user = problem_messages(problem, "kimina")
    assert system["content"].startswith("You are an expert in mathematics")
    assert "# Problem: Add.\n" in user["content"]
    assert "```lean4\nimport Mathlib\n\ntheorem t : 1 + 1 = 2 := by\n```" in user["content"]


def test_error_fix_prompt_keeps_the_sampled_ids(tokenizer: Any, problem: Problem) -> None:
    """Ids that decode and encode to others stay as they were sampled."""
    prompt = prompt_ids(tokenizer, problem, "compact")
    eos = tokenizer.eos_token_id
    halves = tokenizer.encode("é", add_special_tokens=False)
    odd = (halves[0], *tokenizer.encode("ab", add_special_tokens=False))  # a torn character
    assert tuple(tokenizer.encode(tokenizer.decode(odd), add_special_tokens=False)) != odd
    fixed = error_fix_prompt_ids(tokenizer, prompt, (*odd, eos), "Fix it.", [eos])
    assert fixed[: len(prompt) + len(odd) + 1] == (*prompt, *odd, eos)
    suffix = tokenizer.decode(fixed[len(prompt) + len(odd) + 1 :])
    assert suffix == "\n<|im_start|>user\nFix it.<|im_end|>\n<|im_start|>assistant\n"


def test_error_fix_prompt_closes_a_truncated_turn(tokenizer: Any, problem: Problem) -> None:
    prompt = prompt_ids(tokenizer, problem, "compact")
    attempt = tuple(tokenizer.encode("half", add_special_tokens=False))
    fixed = error_fix_prompt_ids(tokenizer, prompt, attempt, "Fix it.", [tokenizer.eos_token_id])
    text = tokenizer.decode(fixed[len(prompt) :])
    assert text == "half<|im_end|>\n<|im_start|>user\nFix it.<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_strips_thinking_does_not_touch_the_attempt(tokenizer: Any, problem: Problem) -> None:
    """Qwen3's template drops everything up to </think> from earlier turns; ours must not notice."""
    strict = json.loads(json.dumps(tokenizer.chat_template))
    tokenizer.chat_template = strict.replace(
        "{{ message.content }}", "{{ message.content.split('</think>')[-1] }}"
    )
    try:
        prompt = prompt_ids(tokenizer, problem, "compact")
        attempt = tuple(tokenizer.encode("<think>a</think>b", add_special_tokens=False))
        fixed = error_fix_prompt_ids(tokenizer, prompt, attempt, "No.", [tokenizer.eos_token_id])
    finally:
        tokenizer.chat_template = strict
    assert tokenizer.decode(fixed[len(prompt) :]).startswith("<think>a</think>b<|im_end|>")


def test_load_tokenizer_collects_every_end_of_sequence(model_folder: Path, tmp_path: Path) -> None:
    tokenizer, eos_ids = load_tokenizer(str(model_folder))
    assert eos_ids == (tokenizer.eos_token_id,)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert load_tokenizer(str(tmp_path))[1] == (5, 7, tokenizer.eos_token_id)


def test_a_folder_without_a_tokenizer_or_template(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UserError, match=f"policy.path {tmp_path}"):
        load_tokenizer(str(tmp_path))
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        tokenizer.save_pretrained(tmp_path)
    finally:
        tokenizer.chat_template = template
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(str(tmp_path))
