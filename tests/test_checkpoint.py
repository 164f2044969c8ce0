"""Checkpoints: whole, checksummed, kept in number, resharded; what a full disk and damage do to them."""

from __future__ import annotations

import ast
import json
import os
import random
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoint_worker
import numpy as np
import pytest
import torch
from checkpoint_worker import tiny_config
from safetensors import SafetensorError
from tiny_policy import accumulate, random_sequences, write_model

from benchmarks.survival import start_ranks
from commands.report import Report
from core.checkpoint import Checkpointer
from core.error_fix import ErrorFixCache, FailedAttempt
from core.errors import UserError
from core.evaluate import Outcome
from core.policy import Policy, load_policy, save_policy
from core.problems import Problem
from core.run import Run
from core.update import Optimiser, finish_gradients, make_optimiser

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = Problem("swap", "theorem swap (p q : Prop) : p :=", "", "∀", "test", 1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


class Trained:
    """A run with a policy that is trained a little at every step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.policy: Policy = load_policy(run.config.policy)  # type: ignore[attr-defined]
        self.optimiser: Optimiser = make_optimiser(self.policy, run.config.optimiser)  # type: ignore[attr-defined]
        self.cache, self.counts = ErrorFixCache(8), Counter[str]()
        states: Any = {"fix": self.cache, "lean": self.counts}
        self.checkpoint = Checkpointer(run, self.policy, self.optimiser, states)
        run.open_folder()
        self.done = self.checkpoint.restore()

    def step(self, step: int) -> None:
        accumulate(
            self.policy, random_sequences(5, seed=step), "drgrpo", token_budget=60, rank=0, world_size=1
        )
        finish_gradients(self.policy, max_norm=1.0)
        self.optimiser.step(1.0)
        self.cache.add([FailedAttempt(PROBLEM, (1, 2, step), f"line {step}")])
        self.counts["proved"] += step
        self.run.log(step, {"a": float(step)})
        self.run.save_rows(f"step_{step:05d}", [{"step": step}])

    def tensors(self) -> dict[str, torch.Tensor]:
        state = {name: p.detach().clone() for name, p in self.policy.named_parameters()}
        return state | {name: t.clone() for name, t in self.optimiser.tensors(self.policy).items()}


@contextmanager
def trained(model: Path, folder: Path, *overrides: str) -> Iterator[Trained]:
    with Run(tiny_config(model, folder, "policy.sharding=none", *overrides), "test") as run:
        yield Trained(run)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_everything_comes_back(model: Path, tmp_path: Path, optimiser: str) -> None:
    overrides = (f"optimiser.name={optimiser}", "optimiser.matrix_learning_rate=0.02")
    folder = tmp_path / "run"
    with trained(model, folder, *overrides) as first:
        assert first.done is None
        for step in (1, 2):
            first.step(step)
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        first.checkpoint.save(2, best=None, last=True)
        expected = first.tensors()
        draws = random.random(), np.random.rand(), torch.rand(3)
        first.step(3)
    with trained(model, folder, *overrides) as second:
        assert second.done == 2
        found = second.tensors()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        again = random.random(), np.random.rand(), torch.rand(3)
        assert again[:2] == draws[:2]
        assert torch.equal(again[2], draws[2])
        assert second.counts == {"proved": 3}
        assert second.cache.take(8, seed=0)[0].problem == PROBLEM
    assert (folder / "metrics.jsonl").read_text().count("\n") == 2, "what came after the checkpoint is gone"
    assert sorted(file.name for file in (folder / "rollouts").iterdir()) == [
        "step_00001.parquet",
        "step_00002.parquet",
    ]


def test_the_newest_and_the_best_are_kept(model: Path, tmp_path: Path) -> None:
    with trained(model, tmp_path / "run", "run.checkpoint_every=1") as run:
        for step in range(6):
            run.checkpoint.save(step, best=1 if step else 0)
    assert names(tmp_path / "run") == ["step_00001", "step_00004", "step_00005"]


def test_checkpoints_are_due_by_cadence_and_for_the_best(model: Path, tmp_path: Path) -> None:
    with trained(model, tmp_path / "run", "run.checkpoint_every=4", "run.keep_last=9") as run:
        for step in range(1, 8):
            run.checkpoint.save(step, best=2, last=step == 7)
    assert names(tmp_path / "run") == ["step_00002", "step_00004", "step_00007"]


def test_a_state_without_updates_is_saved_too(model: Path, tmp_path: Path) -> None:
    with trained(model, tmp_path / "run") as first:
        before = {name: p.detach().clone() for name, p in first.policy.named_parameters()}
        first.checkpoint.save(0, best=0)
        assert all(torch.equal(before[name], p) for name, p in first.policy.named_parameters())
        first.step(1)
        expected = first.tensors()
    with trained(model, tmp_path / "run") as second:
        assert second.done == 0
        second.step(1)
        found = second.tensors()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def truncate(file: Path) -> None:
    os.truncate(file, random.Random(0).randrange(file.stat().st_size))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=["truncated", "a bit", "missing"])
@pytest.mark.parametrize("file", ["shard-*", "state.json", "rank_*", "manifest.json"])
def test_damage_is_told_and_the_one_before_taken(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, damage: Any
) -> None:
    folder = tmp_path / "run"
    with trained(model, folder, "run.checkpoint_every=1") as first:
        for step in (1, 2):
            first.step(step)
            first.checkpoint.save(step, best=None)
    (damaged,) = (folder / "checkpoints" / "step_00002").glob(file)
    damage(damaged)
    with trained(model, folder, "run.checkpoint_every=1") as second:
        assert second.done == 1
        assert "step_00002 is torn or corrupt" in capsys.readouterr().out
        second.step(2)
        second.checkpoint.save(2, best=None)
    assert names(folder) == ["step_00001", "step_00002"], "and the damaged one is replaced"


def test_no_whole_checkpoint_is_no_new_beginning(model: Path, tmp_path: Path) -> None:
    with trained(model, tmp_path / "run") as first:
        first.checkpoint.save(0, best=0)
    truncate(tmp_path / "run" / "checkpoints" / "step_00000" / "state.json")
    with pytest.raises(UserError, match="no checkpoint is whole"), trained(model, tmp_path / "run"):
        pass


def test_a_checkpoint_of_another_optimiser_is_refused(model: Path, tmp_path: Path) -> None:
    with trained(model, tmp_path / "run") as first:
        first.checkpoint.save(0, best=0)
    muon = ("optimiser.name=muon", "optimiser.matrix_learning_rate=0.02")
    with pytest.raises(UserError, match=r"another config \(optimiser.name: adamw → muon"):  # noqa: SIM117
        with trained(model, tmp_path / "run", *muon):
            pass
    with pytest.raises(UserError, match="does not fit"):  # noqa: SIM117
        with trained(model, tmp_path / "run", "run.on_existing=resume_changed", *muon):
            pass


def test_files_are_written_beside_the_training(model: Path, tmp_path: Path) -> None:
    """As on a GPU: what is saved is the state at the time of the call, however the training goes on."""
    with trained(model, tmp_path / "run") as first:
        first.checkpoint.asynchronous = True
        first.step(1)
        expected = first.tensors()
        first.checkpoint.save(1, best=None, last=True)
        first.step(2)
        first.checkpoint.wait()
    with trained(model, tmp_path / "run") as second:
        assert second.done == 1
        found = second.tensors()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the kernel refuses as a quota does, without a disk to fill."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [3000, 10], ids=["no room for tensors", "no room for a line"])
def test_a_full_disk_is_told_and_survived(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int
) -> None:
    folder = tmp_path / "run"
    with trained(model, folder, "run.checkpoint_every=1") as run:
        run.step(1)
        run.checkpoint.save(1, best=None)
        with file_size_limit(limit):
            run.step(2)
            run.checkpoint.save(2, best=None)
        assert "WARNING: no checkpoint" in capsys.readouterr().out
        assert names(folder) == ["step_00001"], "the last good one stands, and nothing half-written"
        if limit == 10:
            assert (folder / "metrics.jsonl").read_text().count("\n") == 1
        run.step(3)
        run.checkpoint.save(3, best=None)
    assert names(folder) == ["step_00001", "step_00003"]
    assert [line.split(",")[0] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
        f'{{"step": {step}' for step in (1, 2, 3)
    ]
    assert len(list((folder / "rollouts").iterdir())) == 3


def test_a_policy_that_a_full_disk_refuses(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoTokenizer:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer.json").write_text("{}")

    folder = tmp_path / "policies" / "step_00001"
    with trained(model, tmp_path / "run") as run, file_size_limit(3000):
        save_policy(run.policy, NoTokenizer(), folder, must=False)
        assert "step_00001 is not saved" in capsys.readouterr().err
        with pytest.raises((OSError, SafetensorError)):
            save_policy(run.policy, NoTokenizer(), folder)
        assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("saved", "restored"),
    [(("fsdp", 2), ("fsdp", 1)), (("ddp", 2), ("fsdp", 2)), (("fsdp", 2), ("ddp", 2))],
    ids=str,
)
def test_another_number_of_ranks_and_another_sharding(
    model: Path, tmp_path: Path, saved: tuple[str, int], restored: tuple[str, int]
) -> None:
    for mode, (sharding, processes) in (("save", saved), ("compare", restored)):
        ranks = start_ranks(processes, checkpoint_worker.main, mode, model, tmp_path / "run", sharding)
        for rank in ranks:
            rank.join()
        assert [rank.exitcode for rank in ranks] == [0] * processes


def _calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_nothing_is_ever_unpickled() -> None:
    """Model and data files are safetensors, JSON and parquet; torch.load, if at all, takes weights only."""
    for folder in ("core", "commands", "experiments"):
        for file in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            imported = {
                alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
            } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            assert not imported & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, file
            for name, call in _calls(file):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert name not in ("pd.read_pickle", "eval", "exec"), (file, name)
                assert name != "torch.load" or keywords.get("weights_only") == "True", file
                assert keywords.get("allow_pickle", "False") == "False", (file, name)
                assert keywords.get("trust_remote_code", "False") == "False", (file, name)
                if name.endswith("ForCausalLM.from_pretrained"):
                    assert keywords.get("use_safetensors") == "True", f"{file} might take a pickled model"


def test_the_cache_is_its_state() -> None:
    cache = ErrorFixCache(3)
    cache.add([FailedAttempt(PROBLEM, (number,), str(number)) for number in range(5)])
    copy = ErrorFixCache(3)
    copy.load_state_dict(cache.state_dict())
    assert copy.take(1, seed=5) == cache.take(1, seed=5)
    assert len(copy) == len(cache) == 2


def test_the_best_evaluation_is_by_the_problems_that_all_had(model: Path, tmp_path: Path) -> None:
    """pass@1 over the first two problems: (0 + 1)/2 = 0.5, (1 + 0.5)/2 = 0.75, 0.75 again: the first
    counts. Over all five problems step 0 would have been the best, with 0.8."""
    with Run(tiny_config(model, tmp_path / "run"), "test") as run:
        report = Report(run, None, samples=2)
        assert report.best_step() is None
        counts = {0: (0, 2, 2, 2, 2), 5: (2, 1), 10: (1, 2)}
        for step, proved in counts.items():
            report.evaluations[step] = [Outcome(str(n), 2, p, 0, 0, 0, 0) for n, p in enumerate(proved)]
        assert report.best_step() == 5
        copy = Report(run, None, samples=2)
        copy.load_state_dict(json.loads(json.dumps(report.state_dict())))
        assert copy.evaluations == report.evaluations
