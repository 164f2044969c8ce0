"""Seeds as pure functions of what they are for, so that nothing depends on rank, batch or resume."""

from __future__ import annotations

import hashlib


def derive_seed(*keys: str | int) -> int:
    """A 63-bit seed from a path of keys; `derive_seed(0, "shuffle", 3)` is the same on every machine."""
    text = "\x1f".join(f"{type(key).__name__}:{key}" for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
