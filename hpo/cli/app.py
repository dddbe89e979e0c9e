"""Which commands there are; each stands in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo.cli import (
    amp_benchmark,
    analysis,
    api,
    dashboard,
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
    study_trial,
    study_watch,
    token,
    trials,
    up,
    worker,
    workers,
)
from hpo.exits import MEANINGS
from hpo.version import __version__

HERE = "On this machine"
PARTS = "The parts, each on its own machine"
USE = "Use a service"
LAUNCH = "Launch and follow"
CHANGE = "Change a study"
RESULTS = "Results"
TRIALS = "Single trials"
OTHERS = "From and to other studies"

EXIT_CODES = "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items())

# A fault of ours shows Python's own traceback, which can be pasted into a report.
app = typer.Typer(
    name="hpo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Begin with: hpo up\n\nExit codes: {EXIT_CODES}.",
)
studies = typer.Typer(no_args_is_help=True, help="Launch, watch, change and compare studies.")
objectives = typer.Typer(no_args_is_help=True, help="Check an objective, list those on offer.")
database = typer.Typer(no_args_is_help=True, help="Prepare the database of a service.")
tokens = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens.")

app.command(rich_help_panel=HERE)(up.up)
app.command("amp-benchmark", rich_help_panel=HERE)(amp_benchmark.amp_benchmark)
app.command(hidden=True)(demo.demo)
app.command(hidden=True)(dashboard.dashboard)
app.add_typer(studies, name="study", rich_help_panel=USE)
app.add_typer(objectives, name="objective", rich_help_panel=USE)
app.command("workers", rich_help_panel=USE)(workers.workers)
app.command("api", rich_help_panel=PARTS)(api.api)
app.command("worker", rich_help_panel=PARTS)(worker.worker)
app.add_typer(database, name="db", rich_help_panel=PARTS)
app.add_typer(tokens, name="token", rich_help_panel=PARTS)

studies.command("create", rich_help_panel=LAUNCH)(study_create.create)
studies.command("list", rich_help_panel=LAUNCH)(study.list_studies)
studies.command("show", rich_help_panel=LAUNCH)(study.show)
studies.command("watch", rich_help_panel=LAUNCH)(study_watch.watch)
studies.command("best", rich_help_panel=RESULTS)(study.best)
studies.command("replicate", rich_help_panel=RESULTS)(study_replicate.replicate)
studies.command("events", rich_help_panel=LAUNCH)(study_events.events)
studies.command("pause", rich_help_panel=CHANGE)(study_state.pause)
studies.command("resume", rich_help_panel=CHANGE)(study_state.resume)
studies.command("stop", rich_help_panel=CHANGE)(study_state.stop)
studies.command("cancel", rich_help_panel=CHANGE)(study_state.cancel)
studies.command("extend", rich_help_panel=CHANGE)(study_state.extend)
studies.command("label", rich_help_panel=CHANGE)(study_state.label)
studies.command("archive", rich_help_panel=CHANGE)(study_state.archive)
studies.command("unarchive", rich_help_panel=CHANGE)(study_state.unarchive)
studies.command("delete", rich_help_panel=CHANGE)(study_delete.delete)
studies.command("clone", rich_help_panel=OTHERS)(study_transfer.clone)
studies.command("warm-start", rich_help_panel=OTHERS)(study_transfer.warm_start)
studies.command("export", rich_help_panel=OTHERS)(study_transfer.export)
studies.command("import", rich_help_panel=OTHERS)(study_transfer.import_study)
studies.command("adopt", rich_help_panel=OTHERS)(study_transfer.adopt)
studies.command("trial", rich_help_panel=TRIALS)(study_trial.trial)
studies.command("log", rich_help_panel=TRIALS)(study_trial.log)
studies.command("enqueue", rich_help_panel=TRIALS)(trials.enqueue)
studies.command("requeue", rich_help_panel=TRIALS)(trials.requeue)
studies.command("cancel-trial", rich_help_panel=TRIALS)(trials.cancel_trial)
studies.command("exclude", rich_help_panel=TRIALS)(trials.exclude)
studies.command("include", rich_help_panel=TRIALS)(trials.include)
studies.command("importances", rich_help_panel=RESULTS)(analysis.importances)
studies.command("history", rich_help_panel=RESULTS)(analysis.history)
studies.command("pareto", rich_help_panel=RESULTS)(analysis.pareto)
studies.command("pruning", rich_help_panel=RESULTS)(analysis.pruning)
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
