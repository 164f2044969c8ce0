"""Records the golden run anew: `make golden`, after a change that is meant to change numbers.

With `--policy FOLDER --data FOLDER` it also takes a new cold-started policy and new problems.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.golden.golden import GOLDEN, run_golden

PROBLEMS, HELDOUT = 16, 8


def take_policy(policy: Path, data: Path) -> None:
    """Copy a policy in bfloat16, and the first problems of a prepared data folder."""
    shutil.rmtree(GOLDEN / "policy", ignore_errors=True)
    AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16).save_pretrained(GOLDEN / "policy")
    AutoTokenizer.from_pretrained(policy).save_pretrained(GOLDEN / "policy")
    for source, target, count in (("train", "problems", PROBLEMS), ("heldout", "heldout", HELDOUT)):
        lines = (data / f"{source}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (GOLDEN / f"{target}.jsonl").write_text("".join(lines[:count]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    if arguments.policy:
        take_policy(arguments.policy, arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        metrics = run_golden("drgrpo_tiny", Path(folder) / "run")
    text = "[\n" + ",\n".join(json.dumps(record) for record in metrics) + "\n]\n"
    (GOLDEN / "metrics.json").write_text(text, encoding="utf-8")
    print(f"recorded {len(metrics)} lines")


if __name__ == "__main__":
    main()
