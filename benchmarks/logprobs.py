"""Selected log-probs, naive against chunked: peak extra memory, time and gradients of one pass.

    python benchmarks/logprobs.py                     # 8,192 tokens × 151,936 words, hidden 1,024, bfloat16
    python benchmarks/logprobs.py --tokens 512 --vocabulary 8000 --hidden 64    # a look in seconds

Each path runs in a process of its own. "naive" keeps float32 logits of products summed in float32, the same
arithmetic as the chunked path; "rounded" is the usual one, bfloat16 logits cast to float32 afterwards.
Extra memory is the peak above what hidden states and head take; both gradients are part of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from core.losses.logprobs import CHUNKS, chunked_logprobs, naive_logprobs

TEMPERATURE = 0.9


def rounded_logprobs(hidden_CH, head_VH, targets_C, *, temperature, entropy):
    logits_CV = (hidden_CH @ head_VH.T).float() / temperature
    logprobs_CV = torch.log_softmax(logits_CV, dim=-1)
    return logprobs_CV.gather(-1, targets_C[:, None]).squeeze(-1), None


def chunked(hidden_CH, head_VH, targets_C, *, temperature, entropy):
    chunk_tokens, chunk_vocabulary = CHUNKS[hidden_CH.device.type]
    return chunked_logprobs(
        hidden_CH,
        head_VH,
        targets_C,
        temperature=temperature,
        entropy=entropy,
        chunk_tokens=chunk_tokens,
        chunk_vocabulary=chunk_vocabulary,
    )


PATHS = {"naive": naive_logprobs, "chunked": chunked, "rounded": rounded_logprobs}


def reset_peak(device: str) -> int:
    """Forget the peak so far; the bytes in use now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the high-water mark to what is resident
    return _kernel_bytes("VmRSS")


def peak_bytes(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else _kernel_bytes("VmHWM")


def _kernel_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def measure(path: str, arguments: argparse.Namespace, folder: Path) -> None:
    """One timed forward and backward pass; its figures as JSON and its gradients into `folder`."""
    torch.set_num_threads(arguments.threads)
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    shape = {"device": device, "dtype": dtype}
    hidden_CH = torch.randn(arguments.tokens, arguments.hidden, **shape).requires_grad_()
    head_VH = torch.randn(arguments.vocabulary, arguments.hidden, **shape)
    head_VH = (head_VH / arguments.hidden**0.5).requires_grad_()
    targets_C = torch.randint(arguments.vocabulary, (arguments.tokens,), device=device)
    weights_C = torch.randn(arguments.tokens, device=device)
    settings = {"temperature": TEMPERATURE, "entropy": False}
    # A small pass first: libraries and threads start outside the measurement.
    PATHS[path](hidden_CH[:8], head_VH[:64], targets_C[:8] % 64, **settings)[0].sum().backward()
    hidden_CH.grad = head_VH.grad = None
    before, start = reset_peak(device), time.perf_counter()
    logprobs_C, _ = PATHS[path](hidden_CH, head_VH, targets_C, **settings)
    (weights_C * logprobs_C).sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    extra = peak_bytes(device) - before
    torch.save([logprobs_C.detach(), hidden_CH.grad, head_VH.grad], folder / f"{path}.pt")
    (folder / f"{path}.json").write_text(json.dumps({"seconds": seconds, "extra_bytes": extra}))


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    """‖left − right‖ / ‖right‖ in float64, a slice at a time."""
    pairs = zip(left.split(4096), right.split(4096), strict=True)
    squares = [((a.double() - b.double()).square().sum(), b.double().square().sum()) for a, b in pairs]
    return float((sum(s[0] for s in squares) / sum(s[1] for s in squares)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float64"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--paths", nargs="+", default=list(PATHS), choices=list(PATHS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, folder = arguments.child.split(":", 1)
        measure(path, arguments, Path(folder))
        return
    print(
        f"{arguments.tokens:,} tokens × {arguments.vocabulary:,} words, hidden {arguments.hidden:,}, "
        f"{arguments.dtype}, {arguments.device}, {arguments.threads} threads, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder, figures = Path(name), {}
        for path in arguments.paths:
            command = [sys.executable, __file__, *sys.argv[1:], "--child", f"{path}:{folder}"]
            subprocess.run(command, check=True)
            figures[path] = json.loads((folder / f"{path}.json").read_text())
            seconds, extra = figures[path]["seconds"], figures[path]["extra_bytes"] / 2**20
            print(f"{path:>8}: {seconds:8.2f} s   {extra:9,.0f} MiB extra")
        if "chunked" not in figures:
            return
        ours = torch.load(folder / "chunked.pt")
        for path in figures.keys() - {"chunked"}:
            theirs = torch.load(folder / f"{path}.pt")
            memory = figures["chunked"]["extra_bytes"] / figures[path]["extra_bytes"]
            duration = figures["chunked"]["seconds"] / figures[path]["seconds"]
            gaps = [relative(a, b) for a, b in zip(ours, theirs, strict=True)]
            print(
                f"chunked / {path}: memory × {memory:.3f}   time × {duration:.2f}   relative difference: "
                f"log-probs {gaps[0]:.1e}, ∂hidden {gaps[1]:.1e}, ∂head {gaps[2]:.1e}"
            )


if __name__ == "__main__":
    main()
