"""prover-format on one output, on rollouts as JSON lines and parquet, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from format_cases import LEAN, STATEMENT, output

from commands.format import main

GOOD = {"completion": output(), "statement": STATEMENT, "problem": "t", "turn": 0, "finish_reason": "stop"}
BAD = GOOD | {"completion": output(lean=LEAN.replace("q ∧ p", "p")), "turn": 1}
CUT = GOOD | {"finish_reason": "length"}


def write_rows(folder: Path, rows: list[dict], suffix: str) -> str:
    path = folder / f"rollouts{suffix}"
    if suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_one_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, statement = tmp_path / "a.txt", tmp_path / "s.lean"
    file.write_text(output(lean=LEAN.replace("q ∧ p", "p")))
    statement.write_text(STATEMENT)
    assert main([str(file), "--statement", str(statement)]) == 1
    assert "statement_changed" in capsys.readouterr().out
    assert main([str(file), "--statement", str(statement), "--json"]) == 1
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert [f["kind"] for f in answer["findings"]] == ["statement_changed"]
    assert answer["findings"][0]["line"] == 14
    assert main([str(file)]) == 0
    assert "not checked" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    file = write_rows(tmp_path, [GOOD, BAD, CUT], suffix)
    assert main([file, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["passed"] for row in rows] == [True, False, False]
    assert [[f["kind"] for f in row["findings"]] for row in rows] == [
        [],
        ["statement_changed"],
        ["truncated"],
    ]
    assert main([file]) == 0
    table = capsys.readouterr().out
    assert "3 rollouts" in table
    assert "turn 1" in table
    assert main([file, "--row", "2"]) == 1
    assert "rejected: statement_changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("none.txt", None, "none.txt: No such file or directory"),
        ("none.jsonl", None, "none.jsonl: No such file or directory"),
        ("none.parquet", None, "none.parquet: not a parquet file"),
        ("empty.jsonl", "\n", "empty.jsonl: no rows"),
        ("a.jsonl", "{", "row 1: not JSON"),
        ("a.jsonl", "[]", "row 1: expected an object"),
        ("a.jsonl", '{"completion": "x"}', "row 1: no text in column statement"),
        ("a.jsonl", '{"completion": "x", "statement": "?"}', "row 1: statement '?' declares nothing"),
        ("a.parquet", "no", "a.parquet: not a parquet file"),
        ("a.txt", b"\xff", "a.txt: not UTF-8"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | bytes | None, expected: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main([str(file)]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out
