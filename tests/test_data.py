"""Reading problems: good files, and every way in which one can be bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from core.config import ColumnsConfig, Config, load_config
from core.data import load_problems, load_training_problems
from core.errors import UserError
from core.prompts import prompt_ids
from tests.conftest import DATA

COLUMNS = ColumnsConfig("name", "statement", "header", "informal", None, None)


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
        (
            '{"name": "a", "statement": "theorem a : p :=", "header": "", "informal": ""}\nnot json\n',
            "row 2: not JSON",
        ),
        ('{"name": "a", "statement": " ", "header": "", "informal": ""}\n', "row 1: no statement"),
        (
            '{"name": "a", "statement": "theorem a : p :=", "header": "", "informal": ""}\n\n'
            '{"name": "b", "statement": null, "header": "", "informal": ""}\n',
            "row 3: no statement",
        ),
        (
            '{"name": "a", "statement": "theorem a : p :=", "header": "", "informal": ""}\n'
            '{"name": "b", "statement": "theorem b", "header": "", "informal": ""}\n',
            "row 2: the statement of b",
        ),
        (
            '{"name": "a", "statement": "def a := 1", "header": "", "informal": ""}\n',
            "row 1: the statement declares no theorem",
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


def test_problems_with_overlong_prompts_are_left_out_and_counted(tokenizer: Any, tmp_path: Path) -> None:
    rows = [
        {"name": name, "statement": f"theorem {name} : p :=", "header": "", "informal": informal}
        | {"source": "s", "difficulty": 1.0}
        for name, informal in (("short", "p"), ("long", "p and " * 50 + "p"), ("brief", "q"))
    ]
    pd.DataFrame(rows).to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    tiny = Path(__file__).parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"
    said: list[str] = []

    def load(limit: int) -> list[str]:
        overrides = [f"data.train={tmp_path / 'p.jsonl'}", f"prompt.max_tokens={limit}"]
        config = load_config(Config, tiny, [*overrides, "prompt.style=compact"])
        return [problem.name for problem in load_training_problems(config, tokenizer, said.append)]

    problems = load_problems(str(tmp_path / "p.jsonl"), COLUMNS)
    short, long, _ = (len(prompt_ids(tokenizer, problem, "compact")) for problem in problems)
    assert load(long) == ["short", "long", "brief"]
    assert said == []
    assert load(long - 1) == ["short", "brief"]
    assert said == [f"left out: 1 of 3 training problems, whose prompts have more than {long - 1} tokens"]
    with pytest.raises(UserError, match="all 3 problems"):
        load(min(short, 3))
