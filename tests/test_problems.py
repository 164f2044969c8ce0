"""Problems: reading them from files, and the order they are drawn in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from core.config import ColumnsConfig, Config, load_config
from core.errors import UserError
from core.problems import Problem, ProblemStream, load_problems
from tests.conftest import DATA

COLUMNS = ColumnsConfig("name", "statement", "header", "informal", None, None)
TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"


def _problems(count: int) -> list[Problem]:
    return [Problem(f"t{i}", f"theorem t{i} : True :=", "", "", "test") for i in range(count)]


def _stream(count: int, *overrides: str) -> ProblemStream:
    config = load_config(Config, TINY, ["rollout.prompts=8", "error_fix.fraction=0.5", *overrides])
    return ProblemStream(_problems(count), config)


def test_a_step_draws_the_same_whatever_was_drawn_before() -> None:
    stream, again = _stream(10), _stream(10)
    for step in (0, 1, 2):
        stream.draw(step, 4)
    assert again.draw(7, 4) == stream.draw(7, 4)
    assert _stream(10, "run.seed=1").draw(7, 4) != stream.draw(7, 4)


def test_full_steps_see_every_problem_once_an_epoch() -> None:
    stream = _stream(12)  # stride 4: three steps an epoch
    for epoch in (0, 5):
        drawn = [p.name for step in range(3) for p in stream.draw(3 * epoch + step, 4)]
        assert Counter(drawn) == Counter(p.name for p in _problems(12))
    assert [p.name for p in stream.draw(0, 12)] != [p.name for p in stream.draw(3, 12)], "reshuffled"


def test_a_window_may_cross_epochs() -> None:
    stream = _stream(5)
    assert stream.draw(1, 4)[:1] == [stream._at(4)]
    assert len(stream.draw(1, 100)) == 100


def test_jsonl_and_parquet_give_the_same_problems(tmp_path: Path) -> None:
    rows = [
        {"name": "a", "statement": "theorem a : p :=", "header": "open Nat\n", "informal": None},
        {
            "name": "b",
            "statement": "import Mathlib\nopen Real\n\ntheorem b : q := by",
            "header": "",
            "informal": "b",
        },
    ]
    table = pd.DataFrame(rows)
    table.to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "p.parquet")
    problems = load_problems(str(tmp_path / "p.jsonl"), COLUMNS)
    assert problems == load_problems(str(tmp_path / "p.parquet"), COLUMNS)
    with pytest.raises(UserError, match="second problem named 'a'"):
        load_problems(str(tmp_path), COLUMNS)
    (tmp_path / "p.parquet").unlink()
    assert load_problems(str(tmp_path), COLUMNS) == problems
    assert problems[0].header == "open Nat\n"
    assert problems[0].informal == ""
    assert problems[1].header == "import Mathlib\nopen Real\n\n"
    assert problems[1].statement == "theorem b : q := by"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"name": "a"}\n', "no column 'statement'"),
        ('{"name": "a", "statement": "s", "header": "", "informal": ""}\nnot json\n', "row 2: not JSON"),
        ('{"name": "a", "statement": " ", "header": "", "informal": ""}\n', "row 1: no statement"),
        (
            '{"name": "a", "statement": "s", "header": "", "informal": ""}\n\n'
            '{"name": "b", "statement": null, "header": "", "informal": ""}\n',
            "row 3: no statement",
        ),
        ("[1]\n", "row 1: expected a JSON object"),
    ],
)
def test_bad_files_are_named_with_their_row(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_problems(str(file), COLUMNS)
    assert words in str(error.value)
    assert str(file) in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_problems(str(tmp_path / "absent.jsonl"), COLUMNS)
    with pytest.raises(UserError, match=r"no \.jsonl or \.parquet"):
        load_problems(str(tmp_path), COLUMNS)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match="cannot be read"):
        load_problems(str(tmp_path / "torn.parquet"), COLUMNS)
    (tmp_path / "latin.jsonl").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(UserError, match="cannot be read"):
        load_problems(str(tmp_path / "latin.jsonl"), COLUMNS)


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is absent")
def test_minif2f_loads() -> None:
    columns = ColumnsConfig("name", "formal_statement", "header", "informal_prefix", "split", None)
    problems = load_problems(str(DATA / "minif2f.jsonl"), columns)
    assert len(problems) == 488
    assert all(p.statement.startswith("theorem") and "import Mathlib" in p.header for p in problems)
