"""Texts for the Kimina server over the embedded Lean: right, wrong, endless and deadly."""

from __future__ import annotations

from core.lean.verdict import LeanCheck, Verdict
from core.problems import Problem

HEADER = "import Mathlib\nimport Aesop\nset_option maxHeartbeats 400000\n\nopen And"
SWAP = Problem("swap", "theorem swap (p q : Prop) (h : And p q) : And q p :=", HEADER, "", "test")
PROOF = "theorem swap (p q : Prop) (h : And p q) : And q p :=\n  ⟨h.right, h.left⟩"
WRONG = PROOF.replace("h.right", "h.left")
TOWER = """def tower (n : Nat) : Nat :=
  match n with
  | Nat.zero => 2
  | Nat.succ n => Nat.mul (tower n) (tower n)
"""
ENDLESS = Problem("endless", f"{TOWER}theorem endless : Eq (tower 40) 3 :=", HEADER, "", "test")
ENDLESS_PROOF = f"{TOWER}theorem endless : Eq (tower 40) 3 := rfl"
CRASH = f"{PROOF}\ntheorem deep : True := " + "fun a => " * 100_000 + "True.intro"


def mixed(count: int, mark: str) -> list[LeanCheck]:
    """Right, wrong and forbidden texts, all different."""
    kinds = (PROOF, WRONG, PROOF, "theorem swap : True := True.intro", f"{PROOF} -- x\n#eval 1")
    return [LeanCheck(f"{mark} {i}", SWAP, f"{kinds[i % 5]}\n-- {i}") for i in range(count)]


EXPECTED = (Verdict.PROVED, Verdict.FAILED, Verdict.PROVED, Verdict.FAILED, Verdict.REFUSED)
