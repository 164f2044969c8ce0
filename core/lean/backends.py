"""Chooses the way to a real Lean: by its name in the config, or the first that answers."""

from __future__ import annotations

import os
from collections.abc import Callable

from core.config import LeanConfig
from core.errors import UserError
from core.lean.embedded import EmbeddedLean
from core.lean.local import LocalLean
from core.lean.verdict import Verifier


class _NotSet(ValueError):
    """Nothing in the config asks for this backend."""


def make_verifier(config: LeanConfig, say: Callable[[str], None] = print) -> Verifier:
    """The verifier that `config.backend` names; what was taken stands in its `name`.

    `auto` takes the first that answers of a configured Kimina server, a configured Lake project and the
    embedded Lean, and says which configured one it passed over, and why. Raises UserError, with what was
    tried and what to set, if none is to be had.
    """
    makers = {"kimina": _kimina, "local": _local, "embedded": _embedded}
    names = list(makers) if config.backend == "auto" else [config.backend]
    tried = []
    for name in names:
        try:
            verifier = makers[name](config)
        except ValueError as error:
            tried.append((name, error))
        else:
            for passed_over, error in tried:
                if not isinstance(error, _NotSet):
                    say(f"Lean: passed over {passed_over}: {error}")
            return verifier
    reasons = "; ".join(f"{name}: {error}" if len(names) > 1 else str(error) for name, error in tried)
    raise UserError(f"lean.backend={config.backend}: {reasons}")


def _kimina(config: LeanConfig) -> Verifier:
    environment = os.environ.get("LEAN_SERVER_API_URL", "")
    servers = config.servers or [address for address in environment.split(",") if address]
    if not servers:
        raise _NotSet("set lean.servers or LEAN_SERVER_API_URL to a server's address")
    try:
        from core.lean.kimina import KiminaLean  # an extra: not every machine has the client
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed; `pip install 'lean-drgrpo[kimina]'`") from error
    return KiminaLean(
        servers=[address.strip().rstrip("/") for address in servers],
        slots=config.server_slots,
        timeout_s=config.timeout_s,
        max_output_bytes=config.max_output_bytes,
        cache_entries=config.cache_entries,
    )


def _local(config: LeanConfig) -> Verifier:
    if config.project is None:
        raise _NotSet("set lean.project to a Lake project's folder")
    return LocalLean(
        project=config.project,
        repl=config.repl,
        workers=config.workers,
        timeout_s=config.timeout_s,
        memory_mb=config.memory_mb,
        max_output_bytes=config.max_output_bytes,
        cache_entries=config.cache_entries,
        recycle_after=config.recycle_after,
    )


def _embedded(config: LeanConfig) -> Verifier:
    return EmbeddedLean(
        workers=config.workers,
        batch_size=config.batch_size,
        timeout_s=config.timeout_s,
        memory_mb=config.memory_mb,
        max_output_bytes=config.max_output_bytes,
        cache_entries=config.cache_entries,
    )
