"""Configuration: every mistake of the user's is one line, found before anything is written."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from core.config import Config, check_config, check_every_key_is_read, config_hash, load_config, to_yaml
from core.errors import UserError
from core.format_checks import PRESETS

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
TINY = EXPERIMENTS / "drgrpo_tiny" / "config.yaml"


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in EXPERIMENTS.glob("*/config.yaml")))
def test_every_experiments_config_is_whole_and_consistent(folder: str) -> None:
    schema = _schema(folder)
    config = load_config(schema, EXPERIMENTS / folder / "config.yaml", [])
    check_config(config)
    check_every_key_is_read(schema, EXPERIMENTS / folder)


def _schema(folder: str) -> type:
    import importlib

    return importlib.import_module(f"experiments.{folder}.train").Config


@pytest.mark.parametrize(
    ("folder", "preset"), [("drgrpo_tiny", "tiny"), ("drgrpo_1p7b", "kimina"), ("drgrpo_0p6b", "kimina")]
)
def test_the_spelled_out_format_thresholds_are_the_preset(folder: str, preset: str) -> None:
    config = load_config(_schema(folder), EXPERIMENTS / folder / "config.yaml", [])
    assert config.format == PRESETS[preset]


def test_overrides_are_typed_and_change_the_hash() -> None:
    plain = load_config(Config, TINY, [])
    changed = load_config(Config, TINY, ["optimiser.learning_rate=1e-5", "run.seed=7"])
    assert changed.optimiser.learning_rate == 1e-5
    assert changed.run.folder.endswith("seed_7/train"), "interpolation follows the override"
    assert config_hash(plain) != config_hash(changed)
    elsewhere = load_config(Config, TINY, ["run.folder=x", "run.wandb=disabled"])
    assert config_hash(plain) == config_hash(elsewhere), "where a run writes changes no number"


def test_the_resolved_config_loads_to_the_same_config(tmp_path: Path) -> None:
    config = load_config(Config, TINY, ["run.seed=3"])
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load_config(Config, tmp_path / "config.yaml", []) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.temprature=1.0", "temprature"),
        ("run.steps=many", r"run\.steps"),
        ("run.steps=1.5", r"run\.steps"),
        ("run.on_existing=overwrite", r"run\.on_existing: .*'refuse', 'replace'"),
        ("prompt.style=verbose", r"prompt\.style: .*'kimina', 'compact', 'statement'"),
        ("nonsense", "section.key=value"),
    ],
)
def test_unknown_and_mistyped_overrides(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(Config, TINY, [override])


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    values = yaml.safe_load(TINY.read_text(encoding="utf-8"))
    del values["loss"]["clip_high"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"missing loss\.clip_high"):
        load_config(Config, tmp_path / "config.yaml", [])


@pytest.mark.parametrize("text", ["run: [", "- a list", ""])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        load_config(Config, tmp_path / "config.yaml", [])


@dataclass(frozen=True)
class _Extra:
    never_read_by_anyone: int


@dataclass(frozen=True)
class _Extended(Config):
    extra: _Extra


def test_a_key_that_no_code_reads_is_an_error() -> None:
    check_every_key_is_read(Config, EXPERIMENTS / "drgrpo_tiny")
    with pytest.raises(UserError, match=r"extra\.never_read_by_anyone"):
        check_every_key_is_read(_Extended, EXPERIMENTS / "drgrpo_tiny")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.steps=0", "at least 1"),
        ("error_fix.fraction=1.5", "between 0 and 1"),
        ("loss.prompts_per_update=5", "multiple"),
        ("rollout.group_size=1", "baseline"),
        ("loss.tokens_per_microbatch=100", "cannot hold"),
        ("rollout.temperature=0", "above 0"),
        ("rollout.top_p=0.9", "nucleus"),
        ("evaluate.samples=0", "at least 1"),
    ],
)
def test_contradictions(override: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        check_config(load_config(Config, TINY, [override]))


@pytest.mark.parametrize("override", ["rollout.temprature=1", "run.steps=0", "data.train=nowhere.jsonl"])
def test_the_command_line_ends_with_one_line_and_code_2(tmp_path: Path, override: str) -> None:
    command = [sys.executable, str(EXPERIMENTS / "drgrpo_tiny" / "train.py"), override]
    command += [f"run.folder={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_config_objects_cannot_be_changed() -> None:
    config = load_config(Config, TINY, [])
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run.seed = 1  # type: ignore[misc]
