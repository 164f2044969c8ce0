"""Metrics and rows of a step, on four hand-made rollouts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commands.step_report import rollout_rows, step_line
from core.format_checks import FormatReport
from core.format_checks.report import Finding
from core.lean.verdict import LeanMessage, LeanResult, Verdict
from core.metrics import mean_metrics, rollout_metrics
from core.problems import Problem
from core.rewards import ScoredRollout, reward
from core.rollout import Rollout, RolloutRequest


def _scored(problem: Problem, number: int, turn: int, verdict: Verdict | None, length: int) -> ScoredRollout:
    request = RolloutRequest(problem, (1, 2), f"g{turn}", turn, ("test", number))
    finish = "length" if length == 9 else "stop"
    rollout = Rollout(request, (5,) * length, (0.0,) * length, finish, "text")
    if verdict is None:
        report = FormatReport((Finding("think_missing", 1, 0, 0.0, "none"),), None, None, (), None)
        return ScoredRollout(rollout, report, None, reward(report, None))
    report = FormatReport((), "code", 1, (), "")
    messages = (LeanMessage("error", 1, 2, 1, 3, "bad ⟨⟩"),) if verdict is Verdict.FAILED else ()
    result = LeanResult(str(number), verdict, messages, None, 0.5)
    return ScoredRollout(rollout, report, result, reward(report, result))


@pytest.fixture
def scored_B(problem: Problem) -> list[ScoredRollout]:
    return [
        _scored(problem, 0, 0, Verdict.PROVED, 3),
        _scored(problem, 1, 0, Verdict.FAILED, 5),
        _scored(problem, 2, 1, None, 9),
        _scored(problem, 3, 1, Verdict.UNKNOWN, 7),
    ]


def test_metrics_by_hand(scored_B: list[ScoredRollout]) -> None:
    metrics = rollout_metrics(scored_B, [0.5, -0.5, 0.0, None])
    assert metrics["reward/mean"] == pytest.approx(1 / 3)  # 1, 0, 0 and one censored
    assert metrics["reward/censored"] == 1
    assert metrics["reward/useful"] == 0.5
    assert metrics["reward/mean/turn_0"] == 0.5
    assert metrics["reward/mean/turn_1"] == 0.0
    assert metrics["format/errors"] == 0.25
    assert metrics["format/think_missing/turn_1"] == 1
    assert metrics["format/think_missing/turn_0"] == 0
    assert metrics["rollout/length/mean"] == 6
    assert metrics["rollout/length/max"] == 9
    assert metrics["rollout/truncated"] == 0.25
    assert metrics["lean/proved"] == metrics["lean/failed"] == metrics["lean/unknown"] == 1
    line = step_line(12, metrics, {"rollout": 1.5})
    for words in ("step   12", "reward 0.333", "fresh 0.50", "fix 0.00", "proved 1", "unknown 1", "1.5s"):
        assert words in line


def test_refusals_are_counted_by_rule(scored_B: list[ScoredRollout]) -> None:
    rules = ("sorry", "set-option", "sorry")
    refused = [
        replace(scored_B[0], result=LeanResult("", Verdict.REFUSED, (), rule, 0.0), reward=0.0)
        for rule in rules
    ]
    metrics = rollout_metrics([*scored_B, *refused], [0.0] * 7)
    found = {name: value for name, value in metrics.items() if "refused" in name}
    assert found == {"lean/refused": 3, "lean/refused/sorry": 2, "lean/refused/set-option": 1}


def test_rows_are_flat_and_survive_parquet(
    scored_B: list[ScoredRollout], tokenizer: Any, tmp_path: Any
) -> None:
    rows = rollout_rows(scored_B, [0.5, -0.5, 0.0, None], tokenizer, step=12)
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    table = pd.read_parquet(tmp_path / "rows.parquet")
    assert table["verdict"].tolist()[:2] == ["proved", "failed"]
    assert table["reward"].isna().tolist() == [False, False, False, True]
    assert table["advantage"].isna().tolist() == [False, False, False, True]
    assert json.loads(table["lean_messages"][1]) == [["error", 1, 2, "bad ⟨⟩"]]
    assert json.loads(table["format_report"][2])[0][0] == "think_missing"
    assert table["completion_tokens"].tolist() == [3, 5, 9, 7]


def test_updates_are_averaged() -> None:
    assert mean_metrics([{"a": 1.0}, {"a": 3.0}]) == {"a": 2.0, "update/count": 2.0}
    assert mean_metrics([]) == {"update/count": 0.0}
