prelude
/-! The names that Lean's elaborator and kernel expect from their library, and little more: all that the
embedded Lean knows of logic and arithmetic.

Lean looks names up while it elaborates `inductive`, `structure` and `match`, so the order matters: each
declaration stands before the first command that needs it. There is no notation and there are no tactics;
proofs are terms. -/

set_option autoImplicit false
set_option linter.all false

universe u v w

/- Values that the compiler has erased. `unsafe`, so no proof can use them. -/
unsafe axiom lcErased : Type
unsafe axiom lcAny : Type
unsafe axiom lcVoid : Type
unsafe axiom lcProof {α : Prop} : α
unsafe axiom lcUnreachable {α : Sort u} : α

set_option bootstrap.inductiveCheckResultingUniverse false in
inductive PUnit : Sort u where
  | unit

abbrev Unit : Type := PUnit
@[match_pattern] abbrev Unit.unit : Unit := PUnit.unit

/-! Equality -/

inductive Eq {α : Sort u} : α → α → Prop where
  | refl (a : α) : Eq a a

abbrev Eq.ndrec {α : Sort v} {a : α} {motive : α → Sort u} (base : motive a) {b : α} (h : Eq a b) :
    motive b :=
  h.rec base

def id {α : Sort u} (a : α) : α := a

def Function.const {α : Sort u} (β : Sort v) (a : α) : β → α := fun _ => a

inductive HEq {α : Sort u} (a : α) : {β : Sort u} → β → Prop where
  | refl : HEq a a

inductive Bool : Type where
  | false
  | true

export Bool (false true)

@[reducible] def optParam (α : Sort u) (default : α) : Sort u := α
@[reducible] def outParam (α : Sort u) : Sort u := α

/- What `sorry` and every failed elaboration becomes; nothing that depends on it counts as proved. -/
axiom sorryAx (α : Sort u) (synthetic : Bool := false) : α

@[match_pattern] def rfl {α : Sort u} {a : α} : Eq a a := Eq.refl a

theorem Eq.subst {α : Sort u} {motive : α → Prop} {a b : α} (h : Eq a b) (base : motive a) :
    motive b :=
  h.rec base

theorem Eq.symm {α : Sort u} {a b : α} (h : Eq a b) : Eq b a := h.rec (Eq.refl a)

theorem Eq.trans {α : Sort u} {a b c : α} (first : Eq a b) (second : Eq b c) : Eq a c :=
  second.rec first

def cast {α β : Sort u} (h : Eq α β) (a : α) : β := h.rec a

theorem Eq.mp {p q : Prop} (h : Eq p q) (proof : p) : q := cast h proof

theorem Eq.mpr {p q : Prop} (h : Eq p q) (proof : q) : p := cast h.symm proof

theorem eq_of_heq {α : Sort u} {a b : α} (h : HEq a b) : Eq a b :=
  have general : (β : Sort u) → (c : β) → HEq a c → (types : Eq α β) → Eq (cast types a) c :=
    fun _ _ same => same.rec (fun _ => rfl)
  general α b h rfl

theorem heq_of_eq {α : Sort u} {a b : α} (h : Eq a b) : HEq a b := h.rec HEq.refl

theorem congrArg {α : Sort u} {β : Sort v} {a b : α} (f : α → β) (h : Eq a b) : Eq (f a) (f b) :=
  h.rec rfl

theorem congrFun {α : Sort u} {β : α → Sort v} {f g : (a : α) → β a} (h : Eq f g) (a : α) :
    Eq (f a) (g a) :=
  h.rec rfl

theorem congr {α : Sort u} {β : Sort v} {f g : α → β} {a b : α} (functions : Eq f g)
    (arguments : Eq a b) : Eq (f a) (g b) :=
  functions.rec (arguments.rec rfl)

/-! Propositions -/

inductive True : Prop where
  | intro

inductive False : Prop

def Not (p : Prop) : Prop := p → False

def False.elim {α : Sort u} (h : False) : α := h.rec

def absurd {p : Prop} {α : Sort u} (h : p) (not : Not p) : α := (not h).elim

structure PProd (α : Sort u) (β : Sort v) where
  fst : α
  snd : β

def cond {α : Sort u} (c : Bool) (yes no : α) : α :=
  match c with
  | true => yes
  | false => no

structure Prod (α : Type u) (β : Type v) where
  fst : α
  snd : β

structure And (p q : Prop) : Prop where
  intro ::
  left : p
  right : q

theorem And.symm {p q : Prop} (h : And p q) : And q p := ⟨h.right, h.left⟩

theorem And.elim {p q r : Prop} (use : p → q → r) (h : And p q) : r := use h.left h.right

inductive Or (p q : Prop) : Prop where
  | inl (h : p)
  | inr (h : q)

theorem Or.elim {p q r : Prop} (h : Or p q) (left : p → r) (right : q → r) : r :=
  h.rec left right

theorem Or.symm {p q : Prop} (h : Or p q) : Or q p := h.elim Or.inr Or.inl

structure Iff (p q : Prop) : Prop where
  intro ::
  mp : p → q
  mpr : q → p

theorem Iff.refl (p : Prop) : Iff p p := ⟨id, id⟩

theorem Iff.symm {p q : Prop} (h : Iff p q) : Iff q p := ⟨h.mpr, h.mp⟩

theorem Iff.trans {p q r : Prop} (first : Iff p q) (second : Iff q r) : Iff p r :=
  ⟨fun h => second.mp (first.mp h), fun h => first.mpr (second.mpr h)⟩

inductive Exists {α : Sort u} (p : α → Prop) : Prop where
  | intro (w : α) (h : p w)

theorem Exists.elim {α : Sort u} {p : α → Prop} {q : Prop} (h : Exists p)
    (use : (a : α) → p a → q) : q :=
  h.rec use

structure PSigma {α : Sort u} (β : α → Sort v) where
  fst : α
  snd : β fst

/-! Coercions, and universe lifting for `match` -/

class CoeFun (α : Sort u) (γ : outParam (α → Sort v)) where
  coe : (f : α) → γ f

class CoeSort (α : Sort u) (β : outParam (Sort v)) where
  coe : α → β

class CoeT (α : Sort u) (_ : α) (β : Sort v) where
  coe : β

structure PULift.{r, s} (α : Sort s) : Sort (max s r 1) where
  up ::
  down : α

structure ULift.{r, s} (α : Type s) : Type (max s r) where
  up ::
  down : α

/-! Natural numbers

The kernel computes with literals by its own arithmetic wherever it meets these names, so each is either
defined here as that arithmetic has it, or reserved: a proof that could define `Nat.pow` could make the
kernel contradict its definition. -/

class inductive Decidable (p : Prop) where
  | isFalse (h : Not p)
  | isTrue (h : p)

def dite {α : Sort u} (p : Prop) [h : Decidable p] (yes : p → α) (no : Not p → α) : α :=
  match h with
  | .isFalse h => no h
  | .isTrue h => yes h

set_option genCtorIdx false in
inductive Nat where
  | zero
  | succ (n : Nat)

class OfNat (α : Type u) (_ : Nat) where
  ofNat : α

@[default_instance 100] instance instOfNatNat (n : Nat) : OfNat Nat n := ⟨n⟩

noncomputable def Nat.ctorIdx (n : Nat) : Nat :=
  Nat.rec (motive := fun _ => Nat) zero (fun _ _ => succ zero) n

noncomputable def Nat.beq (n : Nat) : (m : Nat) → Bool :=
  Nat.rec (motive := fun _ => Nat → Bool)
    (fun m => Nat.rec (motive := fun _ => Bool) true (fun _ _ => false) m)
    (fun _ same m => Nat.rec (motive := fun _ => Bool) false (fun m _ => same m) m) n

theorem Nat.beq_refl (n : Nat) : Eq (beq n n) true :=
  Nat.rec (motive := fun n => Eq (beq n n) true) rfl (fun _ same => same) n

theorem noConfusion_of_Nat {α : Sort u} (index : α → Nat) {a b : α} (h : Eq a b) :
    Bool.rec (motive := fun _ => Prop) False True (Nat.beq (index a) (index b)) :=
  h.rec ((Nat.beq_refl (index a)).symm.rec True.intro)

theorem Nat.succ_ne_zero (n : Nat) : Not (Eq (succ n) zero) := noConfusion_of_Nat ctorIdx

@[extern "lean_nat_pred"] def Nat.pred (n : Nat) : Nat :=
  match n with
  | zero => zero
  | succ n => n

@[extern "lean_nat_dec_eq"] def Nat.decEq (n : Nat) : (m : Nat) → Decidable (Eq n m) :=
  Nat.rec (motive := fun n => (m : Nat) → Decidable (Eq n m))
    (fun m => Nat.rec (motive := fun m => Decidable (Eq zero m))
      (.isTrue rfl) (fun k _ => .isFalse (fun h => succ_ne_zero k h.symm)) m)
    (fun n decide m => Nat.rec (motive := fun m => Decidable (Eq (succ n) m))
      (.isFalse (succ_ne_zero n))
      (fun k _ =>
        match decide k with
        | .isTrue h => .isTrue (congrArg succ h)
        | .isFalse h => .isFalse (fun same => h (congrArg pred same))) m) n

@[extern "lean_nat_sub"] def Nat.sub (n m : Nat) : Nat :=
  match m with
  | zero => n
  | succ m => pred (sub n m)

@[extern "lean_nat_add"] def Nat.add (n m : Nat) : Nat :=
  match m with
  | zero => n
  | succ m => succ (add n m)

@[extern "lean_nat_mul"] def Nat.mul (n m : Nat) : Nat :=
  match m with
  | zero => zero
  | succ m => add (mul n m) n

theorem Nat.succ.inj {n m : Nat} (h : Eq (succ n) (succ m)) : Eq n m := congrArg pred h

noncomputable def Nat.ble (n m : Nat) : Bool := beq (sub n m) zero

theorem Nat.div : True := ⟨⟩
theorem Nat.mod : True := ⟨⟩
theorem Nat.gcd : True := ⟨⟩
theorem Nat.pow : True := ⟨⟩
theorem Nat.log2 : True := ⟨⟩
theorem Nat.land : True := ⟨⟩
theorem Nat.lor : True := ⟨⟩
theorem Nat.xor : True := ⟨⟩
theorem Nat.shiftLeft : True := ⟨⟩
theorem Nat.shiftRight : True := ⟨⟩
theorem Lean.reduceBool : True := ⟨⟩
theorem Lean.reduceNat : True := ⟨⟩

init_quot

/-! String literals, which the kernel types by itself, and names, with which `sorry` marks its place -/

inductive List (α : Type u) where
  | nil
  | cons (head : α) (tail : List α)

structure Char where
  ofNat ::
  val : Nat

inductive String where
  | ofList (characters : List Char)

inductive Lean.Name where
  | anonymous
  | str (pre : Lean.Name) (str : String)
  | num (pre : Lean.Name) (i : Nat)
