"""Which commands there are; each stands in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo.cli import (
    amp_benchmark,
    analysis,
    api,
    db,
    demo,
    objective,
    study,
    study_create,
    study_delete,
    study_events,
    study_replicate,
    study_state,
    study_transfer,
    study_watch,
    token,
    trials,
    up,
    worker,
)
from hpo.version import __version__

HERE = "On this machine"
PARTS = "The parts, each on its own machine"
USE = "Use a service"

# A fault of ours shows Python's own traceback, which can be pasted into a report.
app = typer.Typer(
    name="hpo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    epilog="Begin with: hpo up",
)
studies = typer.Typer(no_args_is_help=True, help="Launch, watch, pause, stop and extend studies.")
objectives = typer.Typer(no_args_is_help=True, help="Check an objective, list those on offer.")
database = typer.Typer(no_args_is_help=True, help="Prepare the database of a service.")
tokens = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens.")

app.command(rich_help_panel=HERE)(up.up)
app.command("amp-benchmark", rich_help_panel=HERE)(amp_benchmark.amp_benchmark)
app.command(hidden=True)(demo.demo)
app.add_typer(studies, name="study", rich_help_panel=USE)
app.add_typer(objectives, name="objective", rich_help_panel=USE)
app.command("api", rich_help_panel=PARTS)(api.api)
app.command("worker", rich_help_panel=PARTS)(worker.worker)
app.add_typer(database, name="db", rich_help_panel=PARTS)
app.add_typer(tokens, name="token", rich_help_panel=PARTS)

studies.command("create")(study_create.create)
studies.command("list")(study.list_studies)
studies.command("show")(study.show)
studies.command("watch")(study_watch.watch)
studies.command("best")(study.best)
studies.command("replicate")(study_replicate.replicate)
studies.command("events")(study_events.events)
studies.command("pause")(study_state.pause)
studies.command("resume")(study_state.resume)
studies.command("stop")(study_state.stop)
studies.command("cancel")(study_state.cancel)
studies.command("extend")(study_state.extend)
studies.command("label")(study_state.label)
studies.command("archive")(study_state.archive)
studies.command("unarchive")(study_state.unarchive)
studies.command("delete")(study_delete.delete)
studies.command("clone")(study_transfer.clone)
studies.command("warm-start")(study_transfer.warm_start)
studies.command("export")(study_transfer.export)
studies.command("import")(study_transfer.import_study)
studies.command("adopt")(study_transfer.adopt)
studies.command("enqueue")(trials.enqueue)
studies.command("requeue")(trials.requeue)
studies.command("cancel-trial")(trials.cancel_trial)
studies.command("exclude")(trials.exclude)
studies.command("include")(trials.include)
studies.command("importances")(analysis.importances)
studies.command("history")(analysis.history)
studies.command("pruning")(analysis.pruning)
objectives.command("check")(objective.check)
objectives.command("list")(objective.list_objectives)
database.command("upgrade")(db.upgrade)
tokens.command("create")(token.create)
tokens.command("list")(token.list_tokens)
tokens.command("revoke")(token.revoke)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hpo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    """A self-hosted hyperparameter optimization service for PyTorch."""
