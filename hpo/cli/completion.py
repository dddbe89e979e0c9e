"""What a shell completes when Tab is pressed: names of studies, while the service answers quickly.

A shell shows whatever is written here between its own lines, so a fault is no suggestion.
"""

from __future__ import annotations

import contextlib
import itertools
import threading

import typer

PATIENCE_SECONDS = 1.0
SHOWN_NAMES = 50


def complete_study(context: typer.Context, incomplete: str) -> list[str]:
    """The names of studies that begin so; none when the service does not answer within a second."""
    url = context.params.get("url")
    return study_names(str(url), incomplete) if url else []


def study_names(url: str, prefix: str, patience_seconds: float = PATIENCE_SECONDS) -> list[str]:
    """As `complete_study`, of the service at `url`."""
    found: list[str] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            from hpo.client import Client

            with Client(url, timeout_seconds=patience_seconds) as client:
                studies = client.studies(name_prefix=prefix or None, archived="any")
                found.extend(study["name"] for study in itertools.islice(studies, SHOWN_NAMES))

    # The client's time is that of each read; this one is of all of them, and of the import.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience_seconds)
    return list(found)
