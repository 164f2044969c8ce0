"""prover-verify: every row gets its verdict, bad rows are named, and a cut run goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from commands.verify import main
from tests.test_interrupt import hear_interrupts

ROOT = Path(__file__).parents[1]
STATEMENT = "theorem swap (p q : Prop) (h : And p q) : And q p :="
PROOFS = {
    "right": f"{STATEMENT}\n  ⟨h.right, h.left⟩",
    "helped": "theorem help (p q : Prop) (h : And p q) : q := h.2\n" + f"{STATEMENT} ⟨help p q h, h.1⟩",
    "wrong": f"{STATEMENT}\n  ⟨h.left, h.left⟩",
    "sorry": f"{STATEMENT} sorry",
}
OPTIONS = ["--backend", "embedded", "--workers", "1"]


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    rows = [{"name": name, "statement": STATEMENT, "proof": proof} for name, proof in PROOFS.items()]
    return write_rows(tmp_path / "rows.jsonl", rows)


def answers(file: Path) -> list[dict]:
    out = file.with_name("rows.verdicts.jsonl")
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_every_row_gets_its_verdict_and_the_full_answer(file, capsys):
    assert main([str(file), *OPTIONS]) == 0
    found = {answer["name"]: answer for answer in answers(file)}
    assert {name: answer["verdict"] for name, answer in found.items()} == {
        "right": "proved",
        "helped": "proved",
        "wrong": "failed",
        "sorry": "refused",
    }
    assert found["sorry"]["rule"] == "sorry"
    message = found["wrong"]["messages"][0]
    assert (found["wrong"]["row"], message["line"], message["column"]) == (3, 2, 3)
    assert "does not depend on any axioms" in found["right"]["raw"]
    assert found["right"]["lean"] == "embedded"
    shown = capsys.readouterr().out
    assert "4 rows to the embedded Lean" in shown
    assert next(
        line.replace("│", " ").replace("┃", " ").split()[:3]
        for line in shown.splitlines()
        if "proved" in line
    ) == ["proved", "2", "50.0%"]


def test_a_second_run_asks_only_what_has_no_verdict(file, capsys):
    assert main([str(file), *OPTIONS]) == 0
    out = file.with_name("rows.verdicts.jsonl")
    lines = out.read_text().splitlines(keepends=True)
    first = {answer["name"]: answer for answer in map(json.loads, lines)}
    unknown = json.dumps({**json.loads(lines[1]), "verdict": "unknown"}) + "\n"
    out.write_text(
        lines[0] + unknown + lines[2] + lines[3][:40]
    )  # one unknown, and one cut off in its middle
    capsys.readouterr()
    assert main([str(file), *OPTIONS]) == 0
    assert "2 rows to the embedded Lean, 2 have a verdict already" in capsys.readouterr().out
    second = {answer["name"]: answer for answer in answers(file)}
    assert len(answers(file)) == 4
    assert {n: a["verdict"] for n, a in second.items()} == {n: a["verdict"] for n, a in first.items()}
    untouched = out.read_text()
    assert main([str(file), *OPTIONS]) == 0
    assert out.read_text() == untouched
    assert "rows to the" not in capsys.readouterr().out.replace("4 rows to the", "", 1)


def test_a_row_that_has_changed_is_asked_again(file):
    assert main([str(file), *OPTIONS]) == 0
    changed = file.read_text().replace("h.left, h.left", "h.right, h.left")
    file.write_text(changed)
    assert main([str(file), *OPTIONS]) == 0
    latest = {answer["name"]: answer["verdict"] for answer in answers(file)}
    assert latest["wrong"] == "proved"


def test_columns_can_have_other_names_and_headers_count(tmp_path):
    row = {"id": "a", "formal": STATEMENT, "code": f"{STATEMENT} intro h.2 h.1", "open": "open And"}
    file = write_rows(tmp_path / "rows.jsonl", [row, {**row, "open": ""}])
    columns = ["--name", "id", "--statement", "formal", "--proof", "code", "--header", "open"]
    assert main([str(file), *OPTIONS, *columns]) == 0
    assert {answer["row"]: answer["verdict"] for answer in answers(file)} == {1: "proved", 2: "failed"}


GOOD = {"name": "a", "statement": STATEMENT, "proof": PROOFS["right"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "row 2: Expecting"),
        ("[1]", "row 2: expected an object with name, statement, proof, header"),
        (json.dumps({**GOOD, "proof": 3}), "row 2: no text in column proof"),
        (json.dumps({"name": "a", "proof": ""}), "row 2: no text in column statement (columns: name, proof;"),
        (
            json.dumps({**GOOD, "statement": "theorem t : p"}),
            "row 2: the statement of t does not end in `:=`",
        ),
        (json.dumps({**GOOD, "header": "import Mathlib"}), "row 2: the header of problem a has imports"),
    ],
)
def test_a_bad_row_is_named_and_is_exit_code_2(tmp_path, capsys, line, message):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    assert main([str(file), *OPTIONS]) == 2
    assert f"{file}, {message}" in capsys.readouterr().err


def test_other_bad_input_is_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "No such file" in capsys.readouterr().err
    file = tmp_path / "rows.jsonl"
    file.write_text("\n")
    assert main([str(file)]) == 2
    assert "no rows" in capsys.readouterr().err
    write_rows(file, [GOOD])
    assert main([str(file), "--backend", "local", "--project", str(tmp_path)]) == 2
    assert "no Lake project" in capsys.readouterr().err
    other = tmp_path / "rows.verdicts.jsonl"
    other.write_text("something else\nof mine\n")
    assert main([str(file), *OPTIONS]) == 2
    assert "not an answer of prover-verify" in capsys.readouterr().err
    assert other.read_text() == "something else\nof mine\n"


def test_an_interrupt_leaves_no_process_and_the_next_run_goes_on(tmp_path):
    tower = (
        "def tower (n : Nat) : Nat :=\n  match n with\n  | Nat.zero => 2\n"
        "  | Nat.succ n => Nat.mul (tower n) (tower n)\n"
    )
    endless = f"{tower}theorem endless : Eq (tower 40) 3 :="
    rows = [GOOD, {"name": "endless", "statement": endless, "proof": f"{endless} rfl"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "rows.verdicts.jsonl"
    alone = ["--timeout", "200", "--batch-size", "1"]
    command = [sys.executable, "-m", "commands.verify", str(file), *OPTIONS, *alone]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen(command, cwd=ROOT, text=True, preexec_fn=hear_interrupts, **pipes)
    try:
        while not (out.exists() and out.read_text().endswith("\n")):
            assert run.poll() is None
            time.sleep(0.05)
        processes = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=250)
    finally:
        run.kill()
    assert processes
    assert run.returncode == 130
    assert "the same command goes on from" in said
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    write_rows(file, rows[:1])
    assert main([str(file), *OPTIONS]) == 0
    assert [answer["verdict"] for answer in answers(file)] == ["proved"]


def test_without_a_terminal_a_line_says_how_far_it_is(file, monkeypatch, capsys):
    monkeypatch.setattr("core.progress.HEARTBEAT_S", 0.001)
    assert main([str(file), *OPTIONS]) == 0
    assert " of 4, " in capsys.readouterr().out


def test_the_command_is_installed():
    binary = Path(sys.executable).with_name("prover-verify")
    if not binary.exists():  # an environment older than the entry: make setup refreshes it
        binary = ROOT / "commands" / "verify.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(binary)] if binary.suffix == "" else [sys.executable, str(binary)]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0
    assert "a second run asks only about rows that have no verdict yet" in done.stdout
