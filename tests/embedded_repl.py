"""A REPL over the embedded Lean that speaks the community REPL's protocol, for the real Kimina server.

One JSON object and a blank line in, one and a blank line out. It has no Mathlib: whatever a header imports,
the text behind it is read over our prelude. It dies where the community's would: when Lean dies. Term-mode
proofs have no tactics, so an info tree is one node over the whole text, in the community REPL's shape.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from core.lean.library import locate_library
from core.lean.sandbox import Zygote

BEFORE = "prelude import Prelude\n"
GOAL = "⊢ the goal"


def requests() -> Iterator[dict[str, Any]]:
    lines: list[str] = []
    for line in sys.stdin:
        if line.strip():
            lines.append(line)
        elif lines:
            yield json.loads("".join(lines))
            lines = []


def moved(message: dict[str, Any]) -> dict[str, Any]:
    """Lean's message as the REPL words it, its lines counted in the text alone."""
    places = {
        key: {**message[key], "line": message[key]["line"] - 1}
        for key in ("pos", "endPos")
        if message.get(key)
    }
    severity = message["severity"].replace("information", "info")
    return {"severity": severity, **places, "data": message["data"]}


def answer(lean: Zygote, request: dict[str, Any], env: int) -> dict[str, Any]:
    text = request["cmd"]
    if text.startswith("import "):
        return {"env": env}
    if "env" in request and request["env"] >= env:
        return {"message": "Unknown environment."}
    run = lean.run(BEFORE + text, 3600.0)
    if run["why"] or run["signal"]:
        os._exit(1)
    lines = [json.loads(line) for line in run["output"].split("\n") if line.startswith("{")]
    tree = {
        "node": {
            "stx": {"range": {"start": {"line": 1, "column": 0}, "finish": {"line": 1_000_000, "column": 0}}},
            "goalsBefore": [GOAL],
        },
        "kind": "TacticInfo",
        "children": [],
    }
    trees = {"infotree": [tree]} if request.get("infotree") else {}
    return {"messages": [moved(line) for line in lines], "env": env, **trees}


def main() -> None:
    lean = Zygote(locate_library(), 1024, 4_000_000)
    for env, request in enumerate(requests()):
        print(json.dumps(answer(lean, request, env), ensure_ascii=False), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
