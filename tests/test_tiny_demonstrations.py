"""The tiny demonstrations against the real Lean and the format checks; tokenizer; error fixes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from core.config import ColumnsConfig, load_config
from core.data import load_problems
from core.format_checks import PRESETS, check_format
from core.lean.backends import make_verifier
from core.lean.verdict import LeanMessage, Verdict, Verifier
from experiments.drgrpo_tiny import prepare
from experiments.drgrpo_tiny.demonstrations import (
    Attempt,
    demonstrate,
    name_mistake,
    proof_lines,
    with_lines,
)
from experiments.drgrpo_tiny.families import FAMILIES
from experiments.drgrpo_tiny.mistakes import KINDS, spoil
from experiments.drgrpo_tiny.prepare import fix_rows, require_proofs, spoilt_attempts, submit
from experiments.drgrpo_tiny.theorems import Theorem, split
from experiments.drgrpo_tiny.tokenizer import train_tokenizer

YAML = Path(prepare.__file__).with_name("prepare.yaml")
SMALL = [
    "train_problems=120",
    "heldout_problems=30",
    "demonstrations=150",
    "error_fix_demonstrations=30",
    "checked_demonstrations=60",
]


@pytest.fixture(scope="module")
def lean() -> Iterator[Verifier]:
    settings = load_config(prepare.Config, YAML, ["lean.workers=1"]).lean
    verifier = make_verifier(settings)
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def train() -> list[Theorem]:
    return split(seed=11, train=400, heldout=0, hardest=7)[0]


@pytest.fixture(scope="module")
def attempts(train: list[Theorem]) -> list[Attempt]:
    rng = random.Random(0)
    return [demonstrate(theorem.renamed(rng), rng) for theorem in train]


@pytest.fixture(scope="module")
def prepared(lean: Verifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare.prepare(load_config(prepare.Config, YAML, [*SMALL, f"folder={folder}"]), lean)
    return folder


def _rows(folder: Path) -> list[dict]:
    lines = (folder / "demonstrations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_lean_accepts_every_demonstration(lean: Verifier, attempts: list[Attempt]) -> None:
    assert {attempt.theorem.family for attempt in attempts} == set(FAMILIES)
    require_proofs(attempts, submit(attempts, lean))


def test_a_demonstration_that_is_no_proof_is_refused(lean: Verifier, attempts: list[Attempt]) -> None:
    wrong = with_lines(attempts[0], ["h99"], random.Random(0))
    with pytest.raises(ValueError, match=r"h99"):
        require_proofs([attempts[1], wrong], submit([attempts[1], wrong], lean))


def test_every_demonstration_passes_the_format_checks(attempts: list[Attempt]) -> None:
    for attempt in attempts:
        problem = attempt.theorem.problem()
        report = check_format(attempt.completion, problem, PRESETS["tiny"], truncated=False)
        assert report.passed, (report.findings, attempt.completion)
        assert report.lean_code == attempt.code
        assert proof_lines(attempt.code) == [line.text for line in attempt.lines]


def test_demonstrations_of_one_theorem_are_varied(train: list[Theorem]) -> None:
    rng = random.Random(0)
    rich = [theorem for theorem in train if theorem.difficulty >= 3][:20]
    for theorem in rich:
        told = {demonstrate(theorem, rng).completion for _ in range(30)}
        assert len(told) >= 10, theorem.statement()
    proofs = [len({demonstrate(theorem, rng).code for _ in range(30)}) for theorem in rich]
    assert sum(proofs) / len(proofs) >= 2


def test_spoilt_proofs_fail_with_an_error_message(lean: Verifier, attempts: list[Attempt]) -> None:
    rng = random.Random(1)
    failed = []
    for attempt in attempts[:300]:
        lines = spoil([line.text for line in attempt.lines], attempt.theorem, rng)
        if lines is not None:
            assert lines != [line.text for line in attempt.lines]
            failed.append(with_lines(attempt, lines, rng))
    results = [answer.result() for answer in submit(failed, lean)]
    verdicts = [result.verdict for result in results]
    assert verdicts.count(Verdict.FAILED) >= 0.95 * len(failed) >= 250
    assert set(verdicts) <= {Verdict.FAILED, Verdict.PROVED}
    for attempt, result in zip(failed, results, strict=True):
        if result.verdict is Verdict.FAILED:
            assert any(m.severity == "error" for m in result.messages), attempt.code


def test_every_kind_of_mistake_occurs(attempts: list[Attempt]) -> None:
    rng = random.Random(2)
    for kind in KINDS:
        lines = [[line.text for line in attempt.lines] for attempt in attempts]
        spoilt = [kind(ls, a.theorem, rng) for ls, a in zip(lines, attempts, strict=True)]
        changed = sum(s is not None and s != ls for s, ls in zip(spoilt, lines, strict=True))
        assert changed > 0.15 * len(attempts), kind.__name__


def test_error_fix_rows_end_in_the_right_proof(lean: Verifier, train: list[Theorem]) -> None:
    settings = load_config(prepare.Config, YAML, []).error_fix
    rng = random.Random(3)
    pairs = spoilt_attempts(train, 40, rng)
    rows = fix_rows(pairs, submit([failed for _, failed in pairs], lean), settings, rng)
    assert len(rows) >= 40
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant", "user", "assistant"]
        prompt, failed, feedback, fixed = (message["content"] for message in row["messages"])
        statement = prompt.split("\n")[1]
        assert statement in failed
        assert statement in fixed
        assert failed.split("```lean4")[1] != fixed.split("```lean4")[1]
        assert "line " in feedback
        assert len(feedback) <= settings.max_characters


def test_naming_a_mistake() -> None:
    lines = ["have h2 : q := h1.left", "h2"]
    said = {
        (2, "Type mismatch\n  h1.left\nhas type\n  p\nbut is expected to have type\n  q"): (
            "h2",
            "p, not q",
        ),
        (2, "Unknown identifier `h7`"): ("h2", "h7"),
        (3, "Function expected at\n  h2\nbut this term has type\n  q"): ("", "h2"),
    }
    for (line, text), parts in said.items():
        error = LeanMessage("error", line, 0, None, None, text)
        sentence = name_mistake(lines, error, random.Random(0))
        assert all(part in sentence for part in parts), sentence


def test_the_tokenizer_gives_every_text_back(prepared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepared / "tokenizer")
    strange = ["Ωλ∀x‑\n\n  a  b\tc ``` 12345 h12.left", " \n   \n", "<think> a</think>b", ""]
    texts = [m["content"] for row in _rows(prepared) for m in row["messages"]] + strange
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_one_symbol_is_one_token(prepared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepared / "tokenizer")
    for symbol in (" h3", " h1.left", " And", " :=", "\n  ", "<think>\n"):
        assert len(tokenizer.encode(symbol)) == 1, symbol
    assert len(tokenizer.encode("theorem conj04 (p q : Prop)")) <= 13


def test_the_tokenizer_folder_speaks_the_chat_format(prepared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepared / "tokenizer")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "u"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]


def test_completions_have_the_length_that_the_response_limit_allows(attempts: list[Attempt]) -> None:
    tokenizer = train_tokenizer([attempt.completion for attempt in attempts], 640)
    lengths = [len(tokenizer.encode(attempt.completion)) for attempt in attempts]
    assert 50 <= sum(lengths) / len(lengths) <= 140
    assert sum(length > 224 for length in lengths) <= 0.01 * len(lengths)


def test_the_prepared_folder_is_what_training_reads(prepared: Path) -> None:
    columns = ColumnsConfig("name", "statement", "header", "informal", "source", "difficulty")
    train = load_problems(str(prepared / "train.jsonl"), columns)
    heldout = load_problems(str(prepared / "heldout.jsonl"), columns)
    assert (len(train), len(heldout)) == (120, 30)
    rows = _rows(prepared)
    assert {row["problem"] for row in rows} <= {problem.name for problem in train}
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("proof"), kinds.count("error_fix")) == (150, 30)


def test_the_same_config_gives_the_same_files(prepared: Path, lean: Verifier, tmp_path: Path) -> None:
    prepare.prepare(load_config(prepare.Config, YAML, [*SMALL, f"folder={tmp_path}"]), lean)
    for name in ("train.jsonl", "heldout.jsonl", "demonstrations.jsonl", "tokenizer/tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (prepared / name).read_bytes(), name
