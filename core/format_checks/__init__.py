"""What makes a completion well-formed: text only, on a Lean-aware lexer."""

from core.format_checks.checks import check_format, overlong_penalty
from core.format_checks.report import KINDS, Finding, FormatReport, format_counters
from core.format_checks.statement import statement_kept
from core.format_checks.thresholds import PRESETS, FormatThresholds

__all__ = [
    "KINDS",
    "PRESETS",
    "Finding",
    "FormatReport",
    "FormatThresholds",
    "check_format",
    "format_counters",
    "overlong_penalty",
    "statement_kept",
]
