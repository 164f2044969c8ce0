"""A run's folder: no keys in it, nobody else's eyes on it, whole at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from core.config import Config, load_config
from core.folder import Folder, redact, write_whole
from core.run import Run

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "experiments" / "drgrpo_tiny" / "config.yaml"
# In parts, so that no scanner takes this file for a leak.
KEYS = {
    "Hugging Face": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ",
    "GitHub": "ghp_" + "0123456789abcdef0123456789abcdef",
    "OpenAI": "sk-" + "proj-0123456789abcdef0123",
    "AWS": "AKIA" + "ABCDEFGHIJKLMNOP",
    "a header": "Bearer " + "abcdef.0123456789.xyz",
    "an address": "https://" + "user:secret@host/x",
    "a private key": "-----BEGIN RSA PRIVATE " + "KEY-----\nabc\n-----END RSA PRIVATE " + "KEY-----",
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_taken_out(kind: str) -> None:
    clean = redact(f"before {KEYS[kind]} behind")
    assert clean.startswith("before ")
    assert clean.endswith(" behind") or kind == "an address"
    assert KEYS[kind][8:20] not in clean


def test_proofs_and_numbers_are_left_alone() -> None:
    text = (
        "theorem sk_1 (h : p ∧ q) : q := by\n  exact ⟨h.right, h.left⟩ -- hf_x, sk-1, 0.5 https://a.b/c:d@e"
    )
    assert redact(text) == text


def test_no_key_of_the_environment_reaches_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an override on the command line, in a rollout, a message and a git diff."""
    secret = "correct-horse-battery"
    monkeypatch.setenv("SOME_API_KEY", secret)
    monkeypatch.setattr(sys, "argv", ["train.py", f"lean.key={secret}"])
    config = load_config(Config, TINY, [f"run.folder={tmp_path / 'run'}", "run.wandb=disabled"])
    with Run(config, "test") as run:
        run.open_folder()
        run.log(1, {"a": 1.0})
        run.files.append("outcomes.jsonl", json.dumps({"name": secret}) + "\n")
        run.save_rows("step_00001", [{"step": 1, "completion": f"the key is {secret}", "reward": None}])
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file
    row = pd.read_parquet(tmp_path / "run" / "rollouts" / "step_00001.parquet").iloc[0]
    assert row["completion"] == "the key is [SOME_API_KEY]"


def test_files_and_folders_are_their_users_alone(tmp_path: Path) -> None:
    config = load_config(Config, TINY, [f"run.folder={tmp_path / 'runs' / 'run'}", "run.wandb=disabled"])
    with Run(config, "test") as run:
        run.open_folder()
        run.log(1, {"a": 1.0})
        run.save_rows("step_00001", [{"step": 1}])
    for path in [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    """Killed at any system call that names a file, a new run's folder is absent or has its run.json."""
    config = load_config(Config, TINY, [f"run.folder={tmp_path / 'run'}"])
    (tmp_path / "run.new" / "rollouts").mkdir(parents=True)  # what a killed process has left
    (tmp_path / "run.old").mkdir()
    origin, resumed = Folder(tmp_path / "run", print).open(config, "test", 1)
    assert not resumed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == origin


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_whole(file, b"old")
    with pytest.raises(TypeError):
        write_whole(file, "no bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"


def test_growing_files_are_cut_back(tmp_path: Path) -> None:
    config = load_config(Config, TINY, [f"run.folder={tmp_path / 'run'}"])
    folder = Folder(tmp_path / "run", print)
    folder.open(config, "test", 1)
    folder.append("metrics.jsonl", "1\n")
    sizes = folder.sizes()
    folder.append("metrics.jsonl", "2\n")
    folder.append("outcomes.jsonl", "2\n")
    for name in ("step_00001", "step_00002", "evaluation_00002"):
        folder.put(f"rollouts/{name}.parquet", b"x")
    (folder.path / "rollouts" / "step_00001.parquet.partial").write_bytes(b"torn")
    folder.cut(sizes, step=1)
    assert (folder.path / "metrics.jsonl").read_text() == "1\n"
    assert (folder.path / "outcomes.jsonl").read_text() == ""
    assert [file.name for file in (folder.path / "rollouts").iterdir()] == ["step_00001.parquet"]


def test_replace_under_a_restart_by_torchrun_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [f"run.folder={tmp_path / 'run'}", "run.on_existing=replace"]
    config = load_config(Config, TINY, overrides)
    first, _ = Folder(tmp_path / "run", print).open(config, "test", 1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second, resumed = Folder(tmp_path / "run", print).open(config, "test", 1)
    assert resumed
    assert second["id"] == first["id"]
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    third, resumed = Folder(tmp_path / "run", print).open(config, "test", 1)
    assert not resumed
    assert third["id"] != first["id"]


def test_an_error_says_no_key_either(tmp_path: Path) -> None:
    """A traceback on stderr is a log too."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom core.config import Config\nfrom core.run import launch\n"
        "def train(config, run): raise RuntimeError('key ' + 'hf_' + 'a' * 30)\n"
        f"sys.argv = ['train.py', 'run.folder={tmp_path / 'run'}']\n"
        f"launch(Config, Path({str(TINY)!r}), train, train)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
    assert done.returncode == 1
    assert "RuntimeError: key [redacted]" in done.stderr
    assert "aaaa" not in done.stderr
