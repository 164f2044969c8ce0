"""What a run shows for itself: a table before and after training, and its curves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from rich.table import Table

from commands.estimates import estimate, fix_against_again, paired_difference, paired_rates
from commands.step_report import rollout_rows, step_line
from core.evaluate import Outcome, evaluation_metrics, pass_rates
from core.rewards import ScoredRollout
from core.run import Run

_SMOOTHED = 10  # steps
_CURVES = (
    ("reward", {"reward/mean": "all", "reward/mean/turn_0": "fresh", "reward/mean/turn_1": "error-fix"}),
    ("share of rollouts", {"format/errors": "format errors", "rollout/truncated": "overlong"}),
    ("completion tokens", {"rollout/length/mean": "mean"}),
)


class Report:
    """Collects a run's evaluations; writes them down as they come and sums them up at the end."""

    def __init__(self, run: Run, tokenizer: Any, samples: int) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.samples = samples
        self.evaluations: dict[int, list[Outcome]] = {}

    def step(
        self,
        step: int,
        metrics: dict[str, float],
        scored_B: Sequence[ScoredRollout],
        advantages_B: Sequence[float | None],
    ) -> None:
        """Print a step's line, log its metrics, keep its rollouts."""
        self.run.print(step_line(step, metrics, self.run.seconds))
        self.run.log(step, metrics)
        self._keep("step", step, scored_B, advantages_B)

    def _keep(
        self,
        name: str,
        step: int,
        scored_B: Sequence[ScoredRollout],
        advantages_B: Sequence[float | None],
    ) -> None:
        """Write rollouts as rows; only rank 0, which writes them, decodes them."""
        if self.run.rank == 0:
            rows = rollout_rows(scored_B, advantages_B, self.tokenizer, step)
            self.run.save_rows(f"{name}_{step:05d}", rows)

    def evaluation(self, step: int, outcomes: Sequence[Outcome], scored: Sequence[ScoredRollout]) -> None:
        """Log one evaluation (all ranks call it): metrics, outcomes and rollouts; print its line."""
        self.evaluations[step] = list(outcomes)
        metrics = evaluation_metrics(outcomes, self.samples)
        everyone = self.run.gather(scored)
        self._keep("evaluation", step, everyone, [None] * len(everyone))
        shown = ", ".join(f"{name.removeprefix('evaluate/')} {value:.3f}" for name, value in metrics.items())
        self.run.print(f"step {step:>4} | held out ({len(outcomes)} problems): {shown}")
        self.run.log(step, metrics)
        if self.run.rank == 0:
            lines = [json.dumps({"step": step, **dataclasses.asdict(outcome)}) for outcome in outcomes]
            self.run.files.append("outcomes.jsonl", "\n".join(lines) + "\n")

    def best_step(self) -> int | None:
        """The step of the best pass@1 so far, over the held-out problems that every evaluation had; the first
        of equals."""
        scores = {
            step: estimate(pass_rates(outcomes, 1, fixed=False)).mean
            for step, outcomes in measured_by_all(self.evaluations).items()
        }
        return max(scores, key=lambda step: scores[step], default=None)

    def state_dict(self) -> dict[str, list[dict[str, Any]]]:
        return {
            str(step): [dataclasses.asdict(outcome) for outcome in outcomes]
            for step, outcomes in self.evaluations.items()
        }

    def load_state_dict(self, state: dict[str, list[dict[str, Any]]]) -> None:
        self.evaluations = {int(step): [Outcome(**one) for one in saved] for step, saved in state.items()}

    def finish(self) -> None:
        """Print the table of the first evaluation against the last, and draw the curves."""
        if self.run.rank != 0:
            return
        first, last = min(self.evaluations), max(self.evaluations)
        table = before_after_table(self.evaluations[first], self.evaluations[last], self.samples)
        self.run.console.print(table)
        plot_curves(self.run.folder)
        self.run.print(f"curves, metrics and rollouts: {self.run.folder}")


def before_after_table(before: Sequence[Outcome], after: Sequence[Outcome], samples: int) -> Table:
    """pass@1 and pass@samples before and after training, each before and after error fixing.

    A row takes the problems that both evaluations have judged, and says how many if some were censored.
    """
    table = Table(title=f"Held out: {len(before)} problems, {samples} samples each (mean ± s.e.)")
    for column in ("", "before training", "after training", "paired difference", "p"):
        table.add_column(column, justify="left" if not column else "right")
    for k in (1, samples):
        for fixed, name in ((False, f"pass@{k}"), (True, f"pass@{k} after error fixing")):
            if fixed and not any(o.fix_tried for o in before):
                continue
            old, new = paired_rates(before, after, k, fixed=fixed)
            difference, p = paired_difference(old, new)
            if len(old) < len(before):
                name += f", {len(old)} problems"
            table.add_row(name, str(estimate(old)), str(estimate(new)), difference.signed(), f"{p:.2g}")
    malformed = [
        estimate([o.malformed / o.samples for o in outcomes if o.samples]) for outcomes in (before, after)
    ]
    table.add_row("format errors", *map(str, malformed))
    if any(o.fix_tried for o in before):
        for which, name in ((0, "error-fix turn succeeds"), (1, "fresh second try succeeds")):
            table.add_row(name, *(str(fix_against_again(o)[which]) for o in (before, after)))
        table.add_row("fix − second try", *(fix_against_again(o)[2].signed() for o in (before, after)))
    return table


def plot_curves(folder: Path) -> Path:
    """Draw metrics.jsonl and outcomes.jsonl of a run's folder as curves.png in it, and return its path."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    table = pd.DataFrame([json.loads(line) for line in lines]).set_index("step")
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axis, (title, curves) in zip(axes.flat[1:], _CURVES, strict=True):
        for column, label in curves.items():
            if column in table:
                points = table[column].dropna()
                (line,) = axis.plot(points, linewidth=0.5, alpha=0.4)
                axis.plot(
                    points.rolling(_SMOOTHED, min_periods=1).mean(), label=label, color=line.get_color()
                )
        axis.set_ylabel(f"{title}, mean of {_SMOOTHED} steps")
    _plot_heldout(axes.flat[0], folder / "outcomes.jsonl")
    for axis in axes.flat:
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False)
    figure.suptitle("/".join(folder.parts[-3:]))
    file = folder / "curves.png"
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return file


def _plot_heldout(axis: Any, file: Path) -> None:
    """pass@1 by evaluation, with standard errors."""
    evaluations: dict[int, list[Outcome]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        record = json.loads(line)
        evaluations.setdefault(record.pop("step"), []).append(Outcome(**record))
    if not evaluations:
        return
    common = measured_by_all(evaluations)
    for fixed, label in ((False, "pass@1"), (True, "after error fixing")):
        points = [estimate(pass_rates(outcomes, 1, fixed=fixed)) for outcomes in common.values()]
        means, errors = [point.mean for point in points], [point.error for point in points]
        axis.errorbar(list(common), means, yerr=errors, label=label, marker=".", capsize=3)
    axis.set_ylabel(f"held-out pass rate, {len(next(iter(common.values())))} problems, ± s.e.")


def measured_by_all(evaluations: Mapping[int, Sequence[Outcome]]) -> dict[int, list[Outcome]]:
    """Each evaluation's outcomes of the problems that all have measured, the first so many of the data."""
    count = min((len(outcomes) for outcomes in evaluations.values()), default=0)
    return {step: list(outcomes[:count]) for step, outcomes in evaluations.items()}
