"""`hpo study watch`: a study as it runs, and what came out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url
from hpo.cli.problems import Interrupted

if TYPE_CHECKING:
    from hpo.client import Client

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout-seconds", min=0, help="Watch no longer; when the study goes on, exit code 1."
    ),
]


def watch(
    name: StudyName,
    url: Url = DEFAULT_URL,
    timeout_seconds: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Watch a study until it ends, then show its best parameters.

    Ctrl-C ends the watching, not the study. Without a terminal it prints lines, with
    --json a document at each change.

    Examples:
      hpo study watch first
      hpo study watch first --timeout-seconds 600 --json
    """
    from hpo.client import Client

    with Client(url) as client:
        watch_or_leave(client, name, timeout_seconds=timeout_seconds, as_json=as_json)


def watch_or_leave(client: Client, name: str, **options: Any) -> None:
    """Watches until the study ends or Ctrl-C comes, which ends the watching only."""
    try:
        watch_study(client, name, **options)
    except KeyboardInterrupt:
        words = f"Study {name} goes on; watch it again with: hpo study watch {name}"
        raise Interrupted(words) from None


def watch_study(
    client: Client,
    name: str,
    *,
    timeout_seconds: float | None = None,
    as_json: bool = False,
    look_around: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Shows the study until it has ended and returns it. Raises StudyFailed, StillRunning."""
    from hpo.cli.output import console
    from hpo.cli.progress import follow, savings
    from hpo.cli.screens import print_summary, screen
    from hpo.listening import check_ended_well

    out = console()
    with screen(out, as_json=as_json) as show:
        for snapshot in follow(
            client, name, timeout_seconds=timeout_seconds, look_around=look_around
        ):
            show(snapshot)
    study = snapshot.study
    if not as_json:
        print_summary(out, study, savings(client, study))
    check_ended_well(study)
    return study
