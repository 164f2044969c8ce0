"""Checkpoints: everything a run needs to go on as if it had never been cut, whole and checksummed.

A checkpoint is a folder `checkpoints/step_00012`:
- `shard-*.safetensors`: parameters and optimiser state, each rank's part, by torch.distributed.checkpoint,
  which cuts them anew for another number of ranks, or from ddp to fsdp;
- `rank_*.json`: each rank's random states; further ranks take over those of the ranks there were;
- `state.json`: step, config hash, the state of the objects given to the Checkpointer, sizes of the files
  that grow;
- `manifest.json`: the SHA-256 of each of these; written last, before the folder gets its name.
Learning rates, problem order and sampling seeds are functions of the seed and the step: nothing to save.
No file is ever unpickled (ranks of one job do exchange pickled objects, over their own connections). What
is trusted is the run's folder, which is private to its user: checksums find damage, not malice. All ranks
must see the folder under the same path.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from core.config import config_hash
from core.errors import UserError
from core.folder import write_whole
from core.policy import Policy
from core.run import Run
from core.update import Optimiser

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process: on purpose


class Stateful(Protocol):
    """Something whose state is plain JSON values, the same on every rank."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class Checkpointer:
    """Saves and restores a run: `policy`, `optimiser`, random states and `objects` by name; a Counter among
    these is saved as the sum over ranks, and rank 0 goes on from it.

    On a GPU the files are written beside the training, from a copy in host memory, one checkpoint at a time.
    """

    def __init__(
        self, run: Run, policy: Policy, optimiser: Optimiser, objects: Mapping[str, Stateful | Counter[str]]
    ) -> None:
        self.run, self.policy, self.optimiser, self.objects = run, policy, optimiser, objects
        self.folder = run.folder / "checkpoints"
        self.asynchronous = run.device.type == "cuda"
        # Apart from the training's, so that files can be written while it goes on.
        self._group: Any = dist.new_group(backend="gloo") if run.world_size > 1 else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        run.on_exit(self._close)

    # Saving

    def save(self, step: int, *, best: int | None, last: bool = False) -> int:
        """Save if it is time (`run.checkpoint_every`), the run ends or stops, or `step` is the `best` one.

        Keeps the newest `run.keep_last` and the best. A full disk is told and survived: the newest whole
        checkpoint stands. To be called by every rank after each step; returns `step`.
        """
        run = self.run
        run.agree_on_stop()
        if not (last or run.stopping or step == best or step % run.config.run.checkpoint_every == 0):
            return step
        with run.phase("checkpoint"):
            self.wait()
            partial = self.folder / f"step_{step:05d}.partial"
            if run.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            problem = run.broadcast(run.files.flush() if run.rank == 0 else None)
            if problem:  # then what is on the disk would not fit this step
                run.print(f"WARNING: no checkpoint of step {step}: {problem}")
                return step
            state = {
                "step": step,
                "config_hash": config_hash(run.config),
                "processes": run.world_size,
                "objects": {name: self._state(one) for name, one in self.objects.items()},
                "files": run.files.sizes() if run.rank == 0 else {},
            }
            texts = {f"rank_{run.rank:05d}.json": json.dumps(random_states())}
            texts |= {"state.json": json.dumps(state)} if run.rank == 0 else {}
            self._start(partial, texts, best)
        return step

    def _state(self, one: Stateful | Counter[str]) -> Any:
        if isinstance(one, Counter):
            return dict(sum(self.run.gather([one]), Counter()))
        return one.state_dict()

    def _start(self, partial: Path, texts: Mapping[str, str], best: int | None) -> None:
        save = state_dict_saver.async_save if self.asynchronous else state_dict_saver.save
        write = functools.partial(
            save,
            self._tensors(),
            storage_writer=HuggingFaceStorageWriter(str(partial), save_distributed=True),
            process_group=self._group,
            no_dist=self._group is None,
        )
        if self.asynchronous:
            uploaded: Any = write()  # returns when the tensors are copied
            self._pending = self._writer.submit(self._complete, partial, uploaded.result, texts, best)
        else:
            self._complete(partial, write, texts, best)

    def _close(self) -> None:
        """Finish what is being written and leave the group: gloo's threads can abort a process that exits."""
        self.wait()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def wait(self) -> None:
        """Return when the checkpoint under way is complete."""
        if self._pending is not None:
            self._pending.result()
        self._pending = None

    def _tensors(self) -> dict[str, Tensor]:
        """Parameters (a tied head once) and optimiser state; loading writes into them."""
        parameters = {f"policy.{n}": p.detach() for n, p in self.policy.causal_lm.named_parameters()}
        return parameters | {f"optimiser.{n}": t for n, t in self.optimiser.tensors(self.policy).items()}

    def _complete(
        self, partial: Path, write: Callable[[], Any], texts: Mapping[str, str], best: int | None
    ) -> None:
        """Write all files, then their checksums, then give the folder its name and delete older ones."""
        rank, sums, problem = self.run.rank, {}, None
        try:
            write()
            for name, text in texts.items():
                write_whole(partial / name, text.encode())
            mine = [*texts, *(file.name for file in partial.glob(f"shard-{rank + 1:05d}-*"))]
            sums = {name: _checksum(partial / name) for name in mine}
        except (OSError, CheckpointException) as error:
            problem = str(error).strip().splitlines()[-1]
        answers = self._gather((problem, sums))
        problem = next((problem for problem, _ in answers if problem), None)
        if rank != 0:
            return
        try:
            if problem is None:
                manifest = {name: total for _, part in answers for name, total in part.items()}
                write_whole(partial / "manifest.json", json.dumps(manifest, indent=2).encode())
                shutil.rmtree(partial.with_suffix(""), ignore_errors=True)
                partial.rename(partial.with_suffix(""))
        except OSError as error:
            problem = str(error)
        if problem is not None:
            self.run.print(f"WARNING: no checkpoint {partial.stem}: {problem}; the one before stands")
            shutil.rmtree(partial, ignore_errors=True)
            return
        whole = self._all()
        keep = {*whole[-self.run.config.run.keep_last :], *(p for p in whole if _step(p) == best)}
        for path in self.folder.iterdir():
            if path not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> list[Path]:
        """Checkpoints with a name of their own, oldest first."""
        return sorted((path for path in self.folder.glob("step_*") if not path.suffix), key=_step)

    def _gather(self, value: Any) -> list[Any]:
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.run.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    # Restoring

    def restore(self) -> int | None:
        """Go back to the newest whole checkpoint; its step, or None where there is none and a run begins.

        A torn or corrupt checkpoint is told, set aside, and the one before is taken; files that grew behind
        the checkpoint are cut back to it. Raises UserError if there are checkpoints and none is whole.
        """
        run = self.run
        paths = run.broadcast(self._all() if run.rank == 0 else [])
        for path in reversed(paths if run.resumed else []):
            damage = next(filter(None, run.gather([self._damage(path)])), None)
            if damage is None:
                return self._load(path)
            run.print(f"WARNING: checkpoint {path.name} is torn or corrupt ({damage}); taking the one before")
            if run.rank == 0:
                path.rename(path.with_suffix(".corrupt"))
        if run.resumed and paths:
            raise UserError(f"{self.folder}: no checkpoint is whole; run.on_existing=replace starts anew")
        if run.resumed and run.rank == 0:
            run.print(f"{run.folder} has no checkpoint yet: the run begins again")
            run.files.cut({}, step=-1)
        run.barrier()
        return None

    def _damage(self, path: Path) -> str | None:
        """What is wrong with this rank's share of a checkpoint's files; None if nothing is."""
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
            for name in sorted(manifest)[self.run.rank :: self.run.world_size]:
                if _checksum(path / name) != manifest[name]:
                    return f"{name} has another checksum"
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def _load(self, path: Path) -> int:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["objects"].keys() != self.objects.keys():
            raise UserError(f"{path} has the state of {[*state['objects']]}, the run wants {[*self.objects]}")
        reader = HuggingFaceStorageReader(str(path))
        try:
            state_dict_loader.load(
                self._tensors(),
                storage_reader=reader,
                process_group=self._group,
                no_dist=self._group is None,
            )
        except (OSError, SafetensorError, CheckpointException) as error:
            raise UserError(f"{path} does not fit this policy and optimiser: {error}") from error
        for name, one in self.objects.items():
            if not isinstance(one, Counter):
                one.load_state_dict(state["objects"][name])
            elif self.run.rank == 0:
                one.update(state["objects"][name])
        rank = self.run.rank % state["processes"]
        set_random_states(json.loads((path / f"rank_{rank:05d}.json").read_text(encoding="utf-8")))
        if self.run.rank == 0:
            self.run.files.cut(state["files"], state["step"])
        self.run.print(f"resumed after step {state['step']} ({path})")
        self.run.barrier()
        return state["step"]


def random_states() -> dict[str, Any]:
    """This process's global random states: torch, CUDA, numpy and Python."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else None,
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "python": random.getstate(),
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Put back what `random_states` gave."""
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(states["cuda"], dtype=torch.uint8))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
