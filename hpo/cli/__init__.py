"""The one command `hpo`: the composition root, and the only package that may import every room.

Each command imports what it needs when it is called, so that `hpo --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from hpo.cli.app import app
from hpo.cli.problems import Declined, Interrupted, exit_code_of, print_problem, tell
from hpo.errors import HpoError
from hpo.exits import Exit


def main() -> None:
    """Runs the command line; an expected error is told clearly and ends with a code of Exit."""
    as_json = "--json" in sys.argv[1:]
    try:
        code = _run(as_json=as_json)
    except (HpoError, OSError, typer.TyperException) as error:
        (print_problem if as_json else tell)(error)
        raise SystemExit(exit_code_of(error)) from None
    raise SystemExit(code)


def _run(*, as_json: bool) -> int:
    """The exit code. For people typer itself tells what is wrong with the command line."""
    try:
        code = app(prog_name="hpo", standalone_mode=not as_json)
    except KeyboardInterrupt:  # before a command listens for it
        code = Exit.INTERRUPTED
    except typer.Abort:
        raise Declined from None
    if as_json and code == Exit.INTERRUPTED:
        raise Interrupted
    return code or Exit.OK
