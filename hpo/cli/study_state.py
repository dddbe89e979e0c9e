"""`hpo study pause|resume|stop|cancel|extend|label|archive|unarchive`: changes of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpo.client import Client

NTrials = Annotated[
    int | None, typer.Option(min=1, help="Trials in all, with those it has started.")
]
MaxFailed = Annotated[
    int | None, typer.Option(min=1, help="End it as failed after so many failed trials.")
]
Now = Annotated[bool, typer.Option("--now", help="End running trials at once.")]
NewTags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Its tags from now on; give it once for each."),
]
Untag = Annotated[bool, typer.Option("--no-tags", help="Take all tags away.")]
Notes = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Its notes from now on; an empty text for none."),
]
MaxParallel = Annotated[int | None, typer.Option(min=1, help="Trials that may run at a time.")]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="Time for the study in all, pauses not counted.")
]
TrialTimeout = Annotated[
    float | None, typer.Option(min=0, help="Time for each trial over all its attempts.")
]
NoProgress = Annotated[
    float | None, typer.Option(min=0, help="Longest time that a trial may go without a report.")
]
Priority = Annotated[int | None, typer.Option(help="Studies with a higher one are served first.")]


def pause(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Pause a study: no trial begins, running ones write a checkpoint and wait.

    They do so at their next report. Safe to repeat, as all of these are.

    Examples:
      hpo study pause first
    """
    _change(url, lambda client: client.pause_study(name), as_json=as_json)


def resume(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let a paused study go on, its trials from their checkpoints.

    Examples:
      hpo study resume first
    """
    _change(url, lambda client: client.resume_study(name), as_json=as_json)


def stop(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Stop a study: no trial begins, running ones end as they would.

    Examples:
      hpo study stop first
    """
    _change(url, lambda client: client.stop_study(name), as_json=as_json)


def cancel(
    name: StudyName, now: Now = False, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Cancel a study: no trial begins, running ones end at their next report.

    With --now they end at once in the database, and their processes within seconds.

    Examples:
      hpo study cancel first
      hpo study cancel first --now
    """
    _change(url, lambda client: client.cancel_study(name, now=now), as_json=as_json)


def archive(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Leave a study that has ended or is paused out of lists; it can be shown all the same.

    Examples:
      hpo study archive first
      hpo study list --archived true
    """
    _change(url, lambda client: client.archive_study(name), as_json=as_json)


def unarchive(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List an archived study again, and let it go on.

    Examples:
      hpo study unarchive first
    """
    _change(url, lambda client: client.unarchive_study(name), as_json=as_json)


def label(
    name: StudyName,
    tag: NewTags = None,
    untag: Untag = False,
    notes: Notes = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a study other tags, or other notes.

    Examples:
      hpo study label first --tag baseline --tag paper --notes "the one of May"
      hpo study label first --no-tags
    """
    if tag and untag:
        raise typer.BadParameter("give --tag or --no-tags")
    given = {"tags": tag or ([] if untag else None), "notes": notes}
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give --tag, --no-tags or --notes")
    _change(url, lambda client: client.amend_study(name, changes), as_json=as_json)


def extend(
    name: StudyName,
    n_trials: NTrials = None,
    max_parallel_trials: MaxParallel = None,
    max_failed_trials: MaxFailed = None,
    timeout_seconds: Timeout = None,
    trial_timeout_seconds: TrialTimeout = None,
    no_progress_seconds: NoProgress = None,
    priority: Priority = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change what a study may spend; one that has ended goes on if it has room again.

    Examples:
      hpo study extend first --n-trials 40
      hpo study extend first --max-parallel-trials 2 --priority 5
    """
    given = {
        "n_trials": n_trials,
        "max_parallel_trials": max_parallel_trials,
        "max_failed_trials": max_failed_trials,
        "timeout_seconds": timeout_seconds,
        "trial_timeout_seconds": trial_timeout_seconds,
        "no_progress_seconds": no_progress_seconds,
        "priority": priority,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        options = ", ".join(f"--{field.replace('_', '-')}" for field in given)
        raise typer.BadParameter(f"give one of {options}")
    _change(url, lambda client: client.amend_study(name, changes), as_json=as_json)


def _change(url: str, change: Callable[[Client], dict[str, Any]], *, as_json: bool) -> None:
    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        study = change(client)
    if as_json:
        return print_json(study)
    n_running = study["counts"]["RUNNING"] - study["awaiting_attempt"]
    budget = f"{study['n_started']} of {study['budget']['n_trials']} trials started"
    state = f"{study['state']}, archived" if study["archived_at"] else study["state"]
    typer.echo(f"Study {study['name']} is {state}: {budget}, {n_running} running.")
    if study["reason"]:
        typer.echo(study["reason"])
