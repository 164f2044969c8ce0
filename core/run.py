"""What surrounds any training loop: processes, the run's folder, progress, timers, metrics and logs.

Nothing here knows what is learnt; no method takes a loss, a batch or an advantage.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pandas as pd
import torch
import torch.distributed as dist
from rich.console import Console
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from core.config import RunConfig, parse_arguments, to_dict
from core.errors import UserError
from core.folder import Folder, redact, secret_variables
from core.progress import progress
from core.watch import StopSignal, Watch

T = TypeVar("T")
PAUSE_POLL_S = 2.0


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
    sys.excepthook = _show_redacted
    try:
        config, dry = parse_arguments(schema, yaml_file, sys.argv[1:])
        with Run(config, experiment=yaml_file.resolve().parent.name) as run:
            (dry_run if dry else train)(config, run)
            if run.opened:
                run.close_folder()
    except UserError as error:
        if int(os.environ.get("RANK", 0)) == 0:
            print(redact(f"error: {error}"), file=sys.stderr)
        sys.exit(2)


def _show_redacted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback is a log too: no keys in it."""
    print(redact("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr)


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
        self._phase = "start-up"
        self._bar_is_up = False
        self.console = Console(stderr=False, soft_wrap=True, quiet=self.rank != 0)
        self.files = Folder(self.folder, self.print)
        self.opened = False
        """Whether this process has opened the run's folder; an evaluation alone does not."""
        self.resumed = False
        """Whether the folder holds an earlier part of this run."""
        self.stopping = False
        """All ranks have agreed to stop here, because one was asked to (SIGTERM)."""
        self._wandb: Any = None
        self._at_exit = contextlib.ExitStack()
        self._watch: Watch | None = None
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        torch.manual_seed(config.run.seed)
        os.umask(0o077)  # whatever a run writes is its user's alone
        if self.world_size > 1 and not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            patience = datetime.timedelta(minutes=config.run.timeout_minutes)
            # A restart's ranks must not read the addresses of those before: the agent's store still has them.
            dist.init_process_group(
                backend,
                store=PrefixStore(f"run/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", _store()),
                rank=self.rank,
                world_size=self.world_size,
                timeout=patience + datetime.timedelta(minutes=1),
            )
            # torch's own limit comes behind the watch, which can say more.
            self._watch = Watch(self.rank, self.world_size, patience.total_seconds())
            self._at_exit.callback(self._watch.close)

    def __enter__(self) -> Run:
        self._stop_signal = StopSignal(self.config.run.grace_s)
        self._at_exit.callback(self._stop_signal.close)
        return self

    def on_exit(self, close: Callable[[], None]) -> None:
        """Call `close` when the run ends, however it ends."""
        self._at_exit.callback(close)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._watch and error is not None and not isinstance(error, UserError):
            ranks = f"the ranks as last heard:\n{self._watch.board()}"
            print(f"rank {self.rank} failed in {self._phase}; {ranks}", file=sys.stderr)
        self._at_exit.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
        if dist.is_initialized() and error is None:
            dist.destroy_process_group()

    def open_folder(self) -> None:
        """Create the run's folder with everything needed to repeat the run, or take up an earlier run in it,
        as `run.on_existing` says; start wandb. Raises UserError if the folder is not to be had."""
        refusal = None
        if self.rank == 0:
            try:
                origin, self.resumed = self.files.open(self.config, self.experiment, self.world_size)
                self._wandb = _start_wandb(self, origin["id"])
            except UserError as error:
                refusal = str(error)
        refusal, self.resumed = self.broadcast((refusal, self.resumed))
        if refusal:
            raise UserError(refusal)
        self.opened = True

    def close_folder(self) -> None:
        """Write what waits for the disk; mark the run as finished unless it was only asked to stop."""
        if self.rank == 0 and (problem := self.files.flush()):
            raise OSError(f"the end of the run could not be written: {problem}")
        if self.stopping:
            self.print("stopped as asked; the same command goes on from the last checkpoint")
        elif self.rank == 0:
            self.files.finish()

    def agree_on_stop(self) -> None:
        """Have all ranks know whether one of them was asked to stop."""
        asked = torch.tensor(int(self._stop_signal.asked))
        if self.world_size > 1:
            dist.all_reduce(asked)
        self.stopping = bool(asked)

    def pause(self, reason: str) -> None:
        """Wait, with all ranks, until the user creates the file `continue` in the folder or SIGTERM comes."""
        sign = self.folder / "continue"
        self.print(f"PAUSED: {reason}. To go on: touch {sign}")
        while not self.broadcast(self.rank == 0 and sign.exists()):
            self.agree_on_stop()
            if self.stopping:
                return
            self._tick("pause")
            time.sleep(PAUSE_POLL_S)
        if self.rank == 0:
            sign.unlink()
        self.print("going on")

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
        """A line on rank 0's terminal; if that is a file on a full disk, the line waits in its buffer."""
        with contextlib.suppress(OSError):
            self.console.print(redact(message), markup=False, highlight=False)

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Time a phase and show its progress: a bar on a terminal, else a line every 30 seconds.

        Yields a function that advances the progress. The seconds add up in `self.seconds[name]`.
        """
        start = time.perf_counter()
        on_bar = self.rank == 0 and self.console.is_terminal and not self._bar_is_up
        self._bar_is_up |= on_bar
        self._tick(name)
        try:
            say = self.print if self.rank == 0 else None
            with progress(name, total, say, self.console if on_bar else None) as show:

                def advance(count: int = 1) -> None:
                    self._tick(name)
                    show(count)

                yield advance
            self._tick(f"what follows {name}")
        finally:
            self._bar_is_up &= not on_bar
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def _tick(self, phase: str) -> None:
        self._phase = phase
        if self._watch is not None:
            self._watch.tick(phase)

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
        self.files.append("metrics.jsonl", json.dumps(record) + "\n")
        if self._wandb is not None:
            self._wandb.log(record, step=step)

    def save_rows(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write flat rows as `rollouts/<name>.parquet`, on rank 0, without keys that got into them."""
        if self.rank == 0:
            known = secret_variables()
            clean = [
                {k: redact(v, known) if isinstance(v, str) else v for k, v in row.items()} for row in rows
            ]
            self.files.put(f"rollouts/{name}.parquet", pd.DataFrame(clean).to_parquet())


def _store() -> TCPStore:
    """Where the ranks meet: with torchrun its agent's, else rank 0's own."""
    hosts = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=hosts, wait_for_workers=False)


def _start_wandb(run: Run, name: str) -> Any:
    mode = run.config.run.wandb
    if mode == "disabled":
        return None
    import wandb

    if mode == "auto":
        mode = "online" if wandb.login(prompt=False) else "offline"
    return wandb.init(
        project="lean-drgrpo",
        name=f"{run.experiment}-{run.folder.name}",
        id=f"{run.experiment}-{name}",
        resume="allow",
        dir=str(run.folder),
        config=to_dict(run.config),
        mode=mode,
        # no copy of the command line, the code, its diff or the packages: they may hold keys
        settings=wandb.Settings(
            console="off",
            silent=mode == "offline",
            disable_git=True,
            x_disable_meta=True,
            x_save_requirements=False,
            save_code=False,
        ),
    )
