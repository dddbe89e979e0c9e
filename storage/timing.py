"""How long statements take, told to whoever wants to know."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

KINDS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})


def watch(engine: sa.Engine, note: Callable[[str, float], None]) -> None:
    """Calls `note` with the kind and the seconds of each statement that was carried out."""

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _begin(*facts: Any) -> None:
        _, _, _, _, context, _ = facts
        if context is not None:
            context.hpo_began_at = time.perf_counter()

    @sa.event.listens_for(engine, "after_cursor_execute")
    def _end(*facts: Any) -> None:
        _, _, text, _, context, _ = facts
        began_at = getattr(context, "hpo_began_at", None)
        if began_at is not None:
            kind = text.lstrip()[:6].upper()
            note(kind if kind in KINDS else "OTHER", time.perf_counter() - began_at)
