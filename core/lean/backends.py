"""Chooses the way to a real Lean by its name in the config."""

from __future__ import annotations

from core.config import LeanConfig
from core.errors import UserError
from core.lean.embedded import EmbeddedLean
from core.lean.verdict import Verifier


def make_verifier(config: LeanConfig) -> Verifier:
    """The verifier that `config.backend` names; `auto` takes the first that is there. What was taken
    stands in its `name`. Raises UserError for a backend that is not on this machine."""
    if config.backend in ("kimina", "local"):
        given = (config.servers, config.server_slots, config.project, config.repl, config.recycle_after)
        raise UserError(f"lean.backend={config.backend}: comes with the next change {given}")
    try:
        return EmbeddedLean(
            workers=config.workers,
            batch_size=config.batch_size,
            timeout_s=config.timeout_s,
            memory_mb=config.memory_mb,
            max_output_bytes=config.max_output_bytes,
            cache_entries=config.cache_entries,
        )
    except ValueError as error:
        raise UserError(f"lean.backend={config.backend}: {error}") from error
