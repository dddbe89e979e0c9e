"""The one command `hpo`: the composition root, and the only package that may import every room.

Each command imports what it needs when it is called, so that `hpo --help` answers at once.
"""

from __future__ import annotations

import typer

from hpo.cli.app import app
from hpo.errors import HpoError
from hpo.exits import Exit


def main() -> None:
    """Runs the command line; an expected error is one clear sentence and an exit code of Exit."""
    try:
        app(prog_name="hpo")
    except KeyboardInterrupt:  # before a command listens for it
        raise SystemExit(Exit.INTERRUPTED) from None
    except (HpoError, OSError) as error:
        text = str(error)
        # Several faults stand on a line each.
        typer.secho(
            "\n".join(["error:", text]) if "\n" in text else f"error: {text}", err=True, fg="red"
        )
        raise SystemExit(getattr(error, "exit_code", Exit.FAILED)) from None
