"""Run: folders, phases, metrics files, and values that cross ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from core.config import Config, load_config
from core.errors import UserError
from core.run import Run
from core.seeds import derive_seed

TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"


def _config(folder: Path, *overrides: str) -> Config:
    return load_config(Config, TINY, [f"run.folder={folder}", "run.wandb=disabled", *overrides])


def test_a_runs_folder_says_how_it_was_made(tmp_path: Path) -> None:
    config = _config(tmp_path / "run")
    with Run(config, "drgrpo_tiny") as run:
        assert not (tmp_path / "run").exists(), "nothing is written before open_folder"
        run.open_folder()
        run.log(3, {"reward/mean": 0.5})
        run.save_rows("step_00003", [{"step": 3, "reward": 1.0}])
    folder = tmp_path / "run"
    assert load_config(Config, folder / "config.yaml", []) == config
    origin = json.loads((folder / "run.json").read_text())
    assert origin["experiment"] == "drgrpo_tiny"
    assert origin["packages"]["torch"]
    assert (folder / "git.diff").is_file()
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["reward/mean"] == 0.5
    assert pd.read_parquet(folder / "rollouts" / "step_00003.parquet")["reward"].tolist() == [1.0]
    assert folder.stat().st_mode & 0o077 == 0, "a run's folder is private"


def test_another_runs_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(_config(folder), "a") as run:
        run.open_folder()
    before = (folder / "run.json").read_text()
    for overrides, kind in ((("run.on_existing=refuse",), "the same"), (("run.seed=5",), "another")):
        with pytest.raises(UserError, match=f"{kind} config"), Run(_config(folder, *overrides), "a") as run:
            run.open_folder()
    assert (folder / "run.json").read_text() == before
    with Run(_config(folder, "run.on_existing=replace", "run.seed=5"), "a") as run:
        run.open_folder()
    assert (folder / "run.json").read_text() != before


def test_a_folder_that_is_no_runs_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    config = _config(tmp_path, "run.on_existing=replace")
    with pytest.raises(UserError, match="no run folder"), Run(config, "a") as run:
        run.open_folder()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_phases_add_up_and_are_logged_once(tmp_path: Path) -> None:
    with Run(_config(tmp_path / "run"), "a") as run:
        run.open_folder()
        for _ in range(2):
            with run.phase("up date", total=1) as advance:
                advance(1)
        assert run.seconds["up date"] > 0
        run.log(1, {})
        run.log(2, {})
    first, second = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert "seconds/up_date" in first
    assert "seconds/up_date" not in second


def test_what_is_registered_is_closed_even_after_an_error(tmp_path: Path) -> None:
    closed = []
    with pytest.raises(RuntimeError), Run(_config(tmp_path / "run"), "a") as run:  # noqa: PT012
        run.on_exit(lambda: closed.append(1))
        raise RuntimeError
    assert closed == [1]


def test_share_covers_everything_once_and_keeps_groups_together(tmp_path: Path) -> None:
    run = Run(_config(tmp_path), "a")
    run.world_size = 3
    values = [(group, i) for group in "abcde" for i in range(2)]
    parts = []
    for rank in range(3):
        run.rank = rank
        parts.append(run.share(values, key=lambda v: v[0]))
    assert sorted(v for part in parts for v in part) == values
    assert all(len({i for g, i in part if g == group}) in (0, 2) for part in parts for group in "abcde")
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_values_cross_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            from core.config import Config, load_config
            from core.run import Run
            config = load_config(Config, Path({str(TINY)!r}), ["run.folder={tmp_path / "run"}",
                                 "run.wandb=disabled"])
            with Run(config, "a") as run:
                run.open_folder()
                assert run.gather([run.rank] * (run.rank + 1)) == [0, 1, 1]
                assert run.broadcast(run.rank) == 0
                run.log(1, {{"rank": run.rank}})
                run.print("said once")
            """
        )
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("said once") == 1
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_seeds_are_pure_and_apart() -> None:
    assert derive_seed(0, "shuffle", 3) == derive_seed(0, "shuffle", 3)
    keys = [(s, n, i) for s in range(3) for n in ("a", "b") for i in range(5)]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert derive_seed("1", 2) != derive_seed(1, 2)
    assert derive_seed("a", "b") != derive_seed("ab")
    assert 0 <= derive_seed(0) < 2**63
