"""`hpo study enqueue|requeue|cancel-trial|exclude|include`: what users do with single trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, Key, StudyName, TrialNumber, Url, pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpo.client import Client

Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A parameter; give it once for each. Those not given are sampled.",
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="YAML or JSON with points, each with params; - reads standard input.",
    ),
]
Extend = Annotated[
    bool, typer.Option("--extend", help="Raise the number of trials where there is no room.")
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for those who come later.")]


def enqueue(
    name: StudyName,
    params: Params = None,
    file: File = None,
    extend: Extend = False,
    key: Key = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Have points tried next: one by options, or several from a file.

    Examples:
      hpo study enqueue first --param x=0.5 --param y=-1
      hpo study enqueue first -f points.yaml --extend
    """
    points = _points(params, file)
    _enqueue(
        url,
        name,
        lambda client: client.enqueue(name, points, extend=extend, key=key),
        as_json=as_json,
    )


def requeue(
    name: StudyName,
    number: TrialNumber,
    extend: Extend = False,
    key: Key = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Have the parameters of a trial that has ended tried once more, as a new trial.

    Examples:
      hpo study requeue first 7 --extend
    """
    _enqueue(
        url,
        name,
        lambda client: [client.requeue(name, number, extend=extend, key=key)],
        as_json=as_json,
    )


def cancel_trial(
    name: StudyName, number: TrialNumber, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """End one trial; its study goes on.

    A running one ends at its next report, or after the API's --lease-seconds when
    none comes; any other one at once.

    Examples:
      hpo study cancel-trial first 7
    """
    _change(url, lambda client: client.cancel_trial(name, number), as_json=as_json)


def exclude(
    name: StudyName,
    number: TrialNumber,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take a finished trial out of best, sampling, pruning and analysis; it stays visible.

    Examples:
      hpo study exclude first 7 --reason "wrong labels"
    """
    _change(url, lambda client: client.exclude_trial(name, number, reason), as_json=as_json)


def include(
    name: StudyName, number: TrialNumber, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Take an excluded trial in again.

    Examples:
      hpo study include first 7
    """
    _change(url, lambda client: client.include_trial(name, number), as_json=as_json)


def _points(params: list[str] | None, file: Path | None) -> list[dict[str, Any]]:
    from hpo.documents import plain_value, read_document

    given = {name: plain_value(value) for name, value in pairs(params, "--param").items()}
    if bool(given) == (file is not None):
        raise typer.BadParameter("give --param for one point, or a file of points with -f")
    if file is None:
        return [{"params": given}]
    points = read_document(file).get("points")
    if not isinstance(points, list):
        raise typer.BadParameter(
            "must hold points, such as\n  points:\n    - params: {lr: 0.01}", param_hint="--file"
        )
    return points


def _enqueue(url: str, name: str, enqueue: Callable[[Client], list[int]], *, as_json: bool) -> None:
    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        numbers = enqueue(client)
    if as_json:
        return print_json({"study": name, "numbers": numbers})
    noun = "trial" if len(numbers) == 1 else "trials"
    typer.echo(f"Study {name}: {noun} {', '.join(map(str, numbers))} enqueued.")


def _change(url: str, change: Callable[[Client], dict[str, Any]], *, as_json: bool) -> None:
    from hpo.cli.output import number, print_json
    from hpo.client import Client

    with Client(url) as client:
        trial = change(client)
    if as_json:
        return print_json(trial)
    words = [f"Trial {trial['number']} is {trial['state']}, value {number(trial['value'])}"]
    if trial["exclusion"] is not None:
        reason = trial["exclusion"]["reason"]
        words.append(f"excluded: {reason}" if reason else "excluded")
    if trial["state"] == "RUNNING":
        words.append(
            "it ends at its next report, or when none comes, after the API's --lease-seconds"
        )
    typer.echo("; ".join(words) + ".")
