"""The house rules: who imports whom, how long things are, and that README and Makefile speak the truth."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CORE = sorted((ROOT / "core").rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").glob("*/*.py"))
SOURCES = [*CORE, *EXPERIMENTS, *sorted((ROOT / "commands").rglob("*.py"))]


def _imports(file: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


@pytest.mark.parametrize("file", CORE, ids=lambda file: str(file.relative_to(ROOT)))
def test_core_never_imports_from_experiments_or_commands(file: Path) -> None:
    assert not {m for m in _imports(file) if m.split(".")[0] in ("experiments", "commands", "tests")}


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_experiments_do_not_import_each_other(file: Path) -> None:
    own = f"experiments.{file.parent.name}"
    theirs = {m for m in _imports(file) if m.startswith("experiments.") and not m.startswith(own)}
    assert not theirs


def test_only_one_file_of_core_knows_each_backend() -> None:
    for module in ("vllm", "kimina_client"):
        users = [file for file in CORE if any(m.split(".")[0] == module for m in _imports(file))]
        assert len(users) <= 1, (module, users)


def _code_lines(file: Path) -> int:
    """Lines that hold code: blank lines, comments and docstrings aside."""
    source = file.read_text(encoding="utf-8")
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documentation |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


CEILINGS = {"lean": 2_300, "format_checks": 900, "the loop": 3_500}
"""Of CONTRIBUTING.md, in lines of code; the loop is all of core beside the two rooms."""


def test_core_stays_small() -> None:
    lines = dict.fromkeys(CEILINGS, 0)
    for file in CORE:
        room = file.relative_to(ROOT / "core").parts[0]
        lines[room if room in lines else "the loop"] += _code_lines(file)
    assert all(lines[room] <= ceiling for room, ceiling in CEILINGS.items()), lines


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_stay_readable(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    limit = 150 if file.name == "train.py" else 400
    assert len(source.splitlines()) <= limit
    if file.name == "train.py":
        return  # the loop is one function on purpose
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{file.name}: {node.name}"


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_says_what_it_is_for(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), f"{file} has no first sentence"


def test_the_readmes_tree_is_the_repository() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"```text\n(core/.*?)```", readme, re.S)
    assert tree, "README.md shows the tree"
    folder = ""
    for line in tree[1].splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            assert (ROOT / folder / name).exists(), line
        else:
            folder = name
            assert (ROOT / name).exists(), line
    for file in (ROOT / "core").glob("*.py"):
        assert file.name == "__init__.py" or file.name in tree[1], f"{file.name} is missing from the tree"


def test_the_readmes_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"make ([a-z][a-z-]*)", readme))
    assert {"demo", "test"} <= named <= targets
    for script in re.findall(
        r"(?:torchrun|python)[^\n]*? ((?:experiments|commands|benchmarks)/\S+\.py)", readme
    ):
        assert (ROOT / script).is_file(), script
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (ROOT / link).exists(), link


def test_ci_runs_the_readmes_two_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make demo" in script
    assert "make test" in script
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    runs = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert {"make demo", "make test", "make check"} <= set(runs)


def test_every_metric_of_the_golden_run_is_in_the_glossary() -> None:
    import json

    glossary = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    metrics = json.loads((ROOT / "tests" / "golden" / "metrics.json").read_text(encoding="utf-8"))
    for name in sorted({name for line in metrics for name in line} - {"step"}):
        generic = re.sub(r"^format/\w+/turn_\d$", "format/<kind>/turn_<n>", name)
        generic = re.sub(r"^lean/\w+$", "lean/<verdict>", generic)
        generic = re.sub(r"^lean/refused/[\w-]+$", "lean/refused/<rule>", generic)
        generic = re.sub(r"pass@(?!1$)\d+$", "pass@k", generic)
        short = re.sub(r"^.*(?=/(?:turn_1|max|pass@k)$)|^.*(?=_(?:low|dual)/mean$)", "", generic)
        short = short.removesuffix("/mean") if short.startswith("_") else short
        assert f"`{generic}`" in glossary or f"`{short}`" in glossary, name
