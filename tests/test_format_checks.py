"""Format checks: the table of outputs, each measure against a slow reference, properties, time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from format_cases import CASES, HEADER, STATEMENT, Case

from core.format_checks import KINDS, PRESETS, check_format
from core.format_checks.report import Finding
from core.problems import Problem

PROBLEM = Problem("t", STATEMENT, HEADER, "", "test")


def as_expected(finding: Finding, expected: str) -> bool:
    """`kind`, then optionally `@line:column`, then optionally `=value`."""
    expected, _, value = expected.partition("=")
    kind, _, place = expected.partition("@")
    return (
        kind == finding.kind
        and (not place or place == f"{finding.line}:{finding.column}")
        and (not value or finding.value == pytest.approx(float(value)))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_table(case: Case) -> None:
    thresholds = replace(PRESETS["kimina"], **case.thresholds)
    report = check_format(case.text, PROBLEM, thresholds, truncated=case.truncated)
    expected = case.expected.split()
    assert len(report.findings) == len(expected), (report.findings, expected)
    for finding, words in zip(report.findings, expected, strict=True):
        assert as_expected(finding, words), (finding, words)
    assert report.passed == (not expected)
