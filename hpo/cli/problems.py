"""How an error leaves the command line: as a sentence, or with --json as a problem document.

The document is one line, the last one of standard error, so that standard output holds answers
and nothing else. It has the members of the API's own problems: for a refusal of the service they
are the service's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from hpo.errors import HpoError
from hpo.exits import Exit
from hpo.numbers import strict

# What to do after a refusal of the service, by the first word of the command and the code.
NEXT_STEPS = {
    ("study", "not_found"): "hpo study list shows the studies, hpo study show STUDY --trials the "
    "trials of one.",
}

# Errors that are no HpoError, the more special kinds first.
CODES_OF_PYTHON: dict[type[Exception], str] = {
    typer.TyperException: "usage",
    TimeoutError: "timed_out",
    Exception: "os_error",
}


class Interrupted(HpoError):
    """Ended by Ctrl-C."""

    code = "interrupted"
    exit_code = Exit.INTERRUPTED


class Declined(HpoError):
    """Nothing was done."""

    code = "declined"


def exit_code_of(error: Exception) -> int:
    """What the command ends with; a value that a user gave is a fault of the command line."""
    usual = Exit.USAGE if isinstance(error, ValueError) else Exit.FAILED
    return int(getattr(error, "exit_code", usual))


def tell(error: Exception) -> None:
    """Says it in a sentence."""
    if isinstance(error, Interrupted):
        return typer.echo(str(error), err=True)
    text = f"{error}{_next_step(error)}"
    # Several faults stand on a line each.
    text = "\n".join(["error:", text]) if "\n" in text else f"error: {text}"
    typer.secho(text, err=True, fg="red")


def print_problem(error: Exception) -> None:
    """Says it in a problem document, in ASCII: what it quotes may be no text at all."""
    document = strict(document_of(error))
    typer.echo(json.dumps(document, allow_nan=False, default=str), err=True)


def document_of(error: Exception) -> dict[str, Any]:
    """An error as RFC 9457 has it; `status` is there when the service has answered."""
    if (problem := getattr(error, "problem", None)) is not None:
        return {**_members(str(problem.get("code", "error")), str(error)), **problem}
    if isinstance(error, HpoError):
        return {**_members(error.code, str(error)), **error.facts, "detail": str(error)}
    if isinstance(error, typer.TyperException):
        message = getattr(error, "format_message", error.__str__)()
        return _members(_code_of(error), " ".join(message.split()))
    return _members(_code_of(error), str(error))


def _code_of(error: Exception) -> str:
    return next(code for kind, code in CODES_OF_PYTHON.items() if isinstance(error, kind))


def _members(code: str, detail: str) -> dict[str, Any]:
    title = code.replace("_", " ").capitalize()
    return {"type": "about:blank", "title": title, "detail": detail, "code": code}


def _next_step(error: Exception) -> str:
    if not hasattr(error, "problem"):  # not the service's: such an error names its cure itself
        return ""
    found = NEXT_STEPS.get(("".join(sys.argv[1:2]), getattr(error, "code", "")))
    return f" {found}" if found else ""
