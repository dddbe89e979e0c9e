"""`hpo study best --download`: fetches the model of a trial into a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hpo.errors import NotFound

if TYPE_CHECKING:
    from hpo.client import Client


def download(
    client: Client, name: str, best: dict[str, Any], file: Path | None, *, force: bool
) -> Path:
    """The file that the model of a study's best trial is in now."""
    if best["model"] is None:
        raise NotFound(_why_none(client, name, best["number"]))
    path = file or Path(best["model"]["file_name"])
    if path.exists() and not force:
        raise typer.BadParameter(
            f"{path} exists; choose another file, or overwrite it with --force", param_hint="FILE"
        )
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="FILE")
    with progress_bar(path.name) as on_bytes:
        return client.download_model(name, best["number"], path, on_bytes=on_bytes)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on a terminal how much has come; standard output stays for the answer."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        bar = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(bar, completed=done, total=total or None)


def _why_none(client: Client, name: str, number: int) -> str:
    study = client.study(name)
    if study["keep_models"] == 0:
        why = "the study keeps none, its keep_models is 0"
    else:
        log = f"{client.url}/v1/studies/{name}/trials/{number}/log"
        why = study["models_blocked"] or f"its objective saved none, or its log says why: {log}"
    return f"Trial {number}, the best of study {name}, has no model: {why}"
