"""The one command `hpo`: the composition root, and the only package that may import every room.

Each command imports what it needs when it is called, so that `hpo --help` answers at once.
"""

from __future__ import annotations

import typer

from hpo.cli.app import app
from hpo.errors import HpoError


def main() -> None:
    """Runs the command line; an expected error is one clear sentence and exit code 1.

    The exit code is 3 when the service asks for a token, or for one of another role.
    """
    try:
        app(prog_name="hpo")
    except KeyboardInterrupt:  # before a command listens for it
        raise SystemExit(130) from None
    except (HpoError, OSError) as error:
        text = str(error)
        # Several faults stand on a line each.
        typer.secho(
            "\n".join(["error:", text]) if "\n" in text else f"error: {text}", err=True, fg="red"
        )
        raise SystemExit(getattr(error, "exit_code", 1)) from None
