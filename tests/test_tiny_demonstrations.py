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
    FORWARD,
    Attempt,
    demonstrate,
    name_mistake,
    with_lines,
)
from experiments.drgrpo_tiny.families import FAMILIES
from experiments.drgrpo_tiny.formulas import Formula, conjunction, disjunction, implication, negation
from experiments.drgrpo_tiny.layout import lay_out, lay_out_forward
from experiments.drgrpo_tiny.mistakes import KINDS, spoil
from experiments.drgrpo_tiny.prepare import fix_rows, require_proofs, spoilt_attempts, submit
from experiments.drgrpo_tiny.prover import prove
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
    wrong = with_lines(attempts[0], ["h99"])
    with pytest.raises(ValueError, match=r"h99"):
        require_proofs([attempts[1], wrong], submit([attempts[1], wrong], lean))


def test_every_demonstration_passes_the_format_checks(attempts: list[Attempt]) -> None:
    for attempt in attempts:
        problem = attempt.theorem.problem()
        report = check_format(attempt.completion, problem, PRESETS["tiny"], truncated=False)
        assert report.passed, (report.findings, attempt.completion)
        assert report.lean_code == attempt.code
        assert [line.strip() for line in attempt.code.split("\n")[1:]] == list(attempt.lines)


def test_a_theorem_is_demonstrated_in_both_ways_and_proved_variously(train: list[Theorem]) -> None:
    rng = random.Random(0)
    rich = [theorem for theorem in train if theorem.difficulty >= 3][:20]
    proofs = 0
    for theorem in rich:
        told = [demonstrate(theorem, rng) for _ in range(30)]
        assert {attempt.opening == FORWARD for attempt in told} == {True, False}
        proofs += len({attempt.lines for attempt in told})
    assert proofs / len(rich) >= 2


def test_both_ways_by_hand() -> None:
    p, q, r = (Formula(letter) for letter in "pqr")
    given, goal = [("h1", conjunction(p, q)), ("h2", implication(q, r))], implication(negation(r), p)
    proof = prove(given, goal, [], random.Random(0))
    assert proof is not None
    assert lay_out(proof, 3) == ["fun (h3 : Not r) =>", "h1.left"]
    forward = lay_out_forward([("h1", implication(p, r)), ("h2", p)], disjunction(q, r), [], random.Random(0))
    assert forward == ["have h3 : r := h1 h2", "Or.inr h3"]


def test_forward_working_stops_where_the_goal_is_reached(attempts: list[Attempt]) -> None:
    for attempt in attempts:
        claims = [line.split(" : ")[1].split(" := ")[0] for line in attempt.lines if line.startswith("have")]
        reached = attempt.theorem.goal.lean()
        assert reached not in claims or attempt.lines[-1].startswith("h"), attempt.code


def test_spoilt_proofs_fail_with_an_error_message(lean: Verifier, attempts: list[Attempt]) -> None:
    rng = random.Random(1)
    failed = []
    for attempt in attempts[:300]:
        lines = spoil(list(attempt.lines), attempt.theorem, rng)
        if lines is not None:
            assert lines != list(attempt.lines)
            failed.append(with_lines(attempt, lines))
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
        lines = [list(attempt.lines) for attempt in attempts]
        spoilt = [kind(ls, a.theorem, rng) for ls, a in zip(lines, attempts, strict=True)]
        changed = sum(s is not None and s != ls for s, ls in zip(spoilt, lines, strict=True))
        assert changed > 0.15 * len(attempts), kind.__name__


def test_error_fix_rows_end_in_the_right_proof(lean: Verifier, train: list[Theorem]) -> None:
    settings = load_config(prepare.Config, YAML, []).error_fix
    rng = random.Random(3)
    pairs = spoilt_attempts(train, 40, rng)
    rows = fix_rows(pairs, submit([failed for _, failed in pairs], lean), settings)
    assert len(rows) >= 40
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant", "user", "assistant"]
        statement, failed, feedback, fixed = (message["content"] for message in row["messages"])
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
        sentence = name_mistake(lines, error)
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
    assert sum(lengths) / len(lengths) <= 140
    assert sum(length > 160 for length in lengths) <= 0.01 * len(lengths)


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
