"""core/lean/README.md tells what the scan and Lean do: its tables are made from the cases, and compared."""

from __future__ import annotations

import cheat_table
from lean_cheats import CHEATS

from core.lean.scan import RULES
from core.lean.verdict import Verdict


def test_the_readmes_tables_are_what_scan_and_lean_say() -> None:
    readme = cheat_table.README.read_text(encoding="utf-8")
    results = cheat_table.ask_lean()
    assert len(results) >= 60
    assert {result.verdict for result in results} == {Verdict.REFUSED, Verdict.FAILED}
    for (name, rule, _), result in zip(CHEATS, results, strict=True):
        assert (name, result.rule or "") == (name, rule)
    message = "the cases have changed: run `python tests/cheat_table.py` and read what it wrote"
    assert cheat_table.with_tables(readme, results) == readme, message


def test_every_rule_of_the_scan_has_a_cheat() -> None:
    assert {rule for _, rule, _ in CHEATS if rule} == set(RULES)
