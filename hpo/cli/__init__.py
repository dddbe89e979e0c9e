"""The one command `hpo`: the composition root, and the only package that may import every room.

Each command imports what it needs when it is called, so that `hpo --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from hpo.cli.app import app
from hpo.errors import HpoError
from hpo.exits import Exit

# What to do after a refusal of the service, by the first word of the command and the code.
NEXT_STEPS = {
    ("study", "not_found"): "hpo study list shows the studies, hpo study show STUDY --trials the "
    "trials of one.",
}


def main() -> None:
    """Runs the command line; an expected error is one clear sentence and an exit code of Exit."""
    try:
        app(prog_name="hpo")
    except KeyboardInterrupt:  # before a command listens for it
        raise SystemExit(Exit.INTERRUPTED) from None
    except (HpoError, OSError) as error:
        text = f"{error}{_next_step(error)}"
        # Several faults stand on a line each.
        typer.secho(
            "\n".join(["error:", text]) if "\n" in text else f"error: {text}", err=True, fg="red"
        )
        raise SystemExit(getattr(error, "exit_code", Exit.FAILED)) from None


def _next_step(error: Exception) -> str:
    if not hasattr(error, "problem"):  # not the service's: such an error names its cure itself
        return ""
    found = NEXT_STEPS.get(("".join(sys.argv[1:2]), getattr(error, "code", "")))
    return f" {found}" if found else ""
