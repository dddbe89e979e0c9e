"""Pictures of real studies, as files, from the command line, and as a notebook sees them."""

from __future__ import annotations

import html
import json
import math
import sys
import typing
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpo
from hpo.cli import app
from hpo.cli.study_plot import Kind
from hpo.errors import InvalidField, TooFewTrials
from hpo.plots import KINDS, Picture
from hpo.plots.picture import PlotsMissing
from tests.api_kit import Running

WILD = "</script><b>&"
SPACE = {
    "x": hpo.FloatRange(low=-5, high=5),
    "lr": hpo.FloatRange(low=1e-4, high=1.0, log=True),
    "kind": hpo.Categorical(choices=("a", WILD)),
}
PNG = b"\x89PNG"


def bowl(trial: hpo.Trial) -> float:
    for step in range(3):
        trial.report((trial.params["x"] - 2) ** 2 + 3 - step, step)
        if trial.should_prune():
            raise hpo.TrialPruned
    if trial.number == 3:
        raise RuntimeError(WILD)
    return float((trial.params["x"] - 2) ** 2)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hpo.Client]:
    """A service with a study that has ended, one of two directions, and an empty one."""
    service = Running(f"sqlite:///{tmp_path_factory.mktemp('plots') / 'hpo.db'}")
    with hpo.Client(f"http://127.0.0.1:{service.port}") as client:
        client.optimize(
            bowl,
            name="bowl",
            n_trials=16,
            space=SPACE,
            direction="minimize",
            seed=1,
            catch=(RuntimeError,),
        )
        front = client.launch(
            name="front",
            n_trials=6,
            space={"x": SPACE["x"]},
            directions=["minimize", "maximize"],
            metrics=["loss", "speed"],
        )
        for _ in range(6):
            with front.ask() as trial:
                trial.complete([trial.params["x"] ** 2, trial.params["x"]])
        client.launch(name="empty", n_trials=3, space=SPACE, direction="minimize")
        yield client
    service.stop()


@pytest.fixture
def study(client: hpo.Client) -> hpo.Study:
    return client.open("bowl")


def rows_of(picture: Picture, layer: int | None = None) -> list[dict[str, object]]:
    part = picture.spec if layer is None else picture.spec["layer"][layer]
    return list(part["data"]["values"])


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_drawn_in_each_form(kind: str, client: hpo.Client, tmp_path: Path) -> None:
    picture = client.open("front" if kind == "pareto" else "bowl").plot(kind)
    assert picture.save(tmp_path / "a.png").read_bytes().startswith(PNG)
    ElementTree.parse(picture.save(tmp_path / "a.svg"))
    page = picture.save(tmp_path / "a.html").read_text(encoding="utf-8")
    assert WILD not in page  # it would end the script
    assert "src=" not in page.partition("<script>")[0]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_history_shows_every_trial_and_ends_with_the_best(study: hpo.Study) -> None:
    picture = study.plot("history")
    ended = study.trials("COMPLETE") + study.trials("PRUNED")
    assert {row["trial"] for row in rows_of(picture, 0)} == {t["number"] for t in ended}
    assert rows_of(picture, 1)[-1]["value"] == study.best_value
    assert {row["state"] for row in rows_of(picture, 0)} == {"COMPLETE", "PRUNED"}


def test_curves_are_what_was_reported(study: hpo.Study) -> None:
    rows = rows_of(study.plot("curves"))
    shown = [(row["step"], row["value"]) for row in rows if row["trial"] == 0]
    assert shown == [(point["step"], point["value"]) for point in study.trial(0)["curve"]]


def test_parallel_axes_hold_all_values(study: hpo.Study) -> None:
    rows = rows_of(study.plot("parallel"), 0)
    places = [row["at"] for row in rows]
    assert min(places) == 0
    assert math.isclose(max(places), 1)
    assert len(rows) == 4 * len(study.trials("COMPLETE"))


def test_a_front_is_the_services(client: hpo.Client) -> None:
    study = client.open("front")
    rows = rows_of(study.plot("pareto"))
    front = {row["trial"] for row in rows if row["front"] == "front"}
    assert front == {trial["number"] for trial in study.pareto()["trials"]}


def test_an_excluded_trial_is_not_shown(client: hpo.Client, study: hpo.Study) -> None:
    number = study.trials("COMPLETE")[0]["number"]
    client.exclude_trial("bowl", number)
    try:
        assert number not in {row["trial"] for row in rows_of(study.plot(), 0)}
    finally:
        client.include_trial("bowl", number)


@pytest.mark.parametrize(
    ("name", "kind", "error", "words"),
    [
        ("bowl", "pie", InvalidField, "choose history, curves"),
        ("bowl", "pareto", InvalidField, "needs several directions"),
        ("front", "history", InvalidField, "take pareto or parallel"),
        ("empty", "history", TooFewTrials, "No trial of study empty has completed"),
        ("empty", "curves", TooFewTrials, "has reported"),
        ("empty", "parallel", TooFewTrials, "No trial with parameters"),
        ("empty", "importances", hpo.HpoError, "completed trials"),
    ],
)
def test_what_cannot_be_shown_says_why(
    name: str, kind: str, error: type[Exception], words: str, client: hpo.Client
) -> None:
    with pytest.raises(error, match=words):
        client.open(name).plot(kind)


class TestNotebooks:
    def test_a_picture_is_shown_by_whatever_reads_notebooks(self, study: hpo.Study) -> None:
        bundle = study.plot()._repr_mimebundle_()
        assert bundle["image/png"].startswith(PNG)
        assert json.dumps(bundle["application/vnd.vegalite.v5+json"])

    def test_a_study_is_a_table(self, study: hpo.Study) -> None:
        shown = study.refresh()._repr_html_()
        assert "<th>state</th><td>completed</td>" in shown
        assert "16 of 16 trials" in shown
        assert ElementTree.fromstring(f"<div>{shown}</div>").find("table/caption") is not None

    def test_a_trial_is_a_table_with_everything_escaped(self, study: hpo.Study) -> None:
        failed = study.trial(3)
        assert WILD in failed["message"]
        shown = failed._repr_html_()
        assert WILD not in shown
        assert html.escape(WILD) in shown
        ElementTree.fromstring(shown)


class TestCommand:
    def call(self, client: hpo.Client, *words: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["study", "plot", *words, "--url", client.url])
        return found.exit_code, found.output + str(found.exception or "")

    def test_it_writes_a_file_and_overwrites_none(
        self, client: hpo.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert self.call(client, "bowl") == (0, "The picture is in bowl-history.png.\n")
        assert (tmp_path / "bowl-history.png").read_bytes().startswith(PNG)
        code, words = self.call(client, "bowl")
        assert code == 2
        assert "--force" in words
        code, words = self.call(client, "bowl", "--force", "--json")
        assert json.loads(words)["file"] == "bowl-history.png"

    def test_it_takes_the_kinds_that_exist(self) -> None:
        assert typing.get_args(typing.get_args(Kind)[0]) == tuple(KINDS)

    def test_a_file_that_is_no_picture_is_refused(self, client: hpo.Client, tmp_path: Path) -> None:
        code, words = self.call(client, "bowl", "-o", str(tmp_path / "a.pdf"))
        assert code != 0
        assert "a.pdf must end in .png, .svg, .html" in words

    def test_what_is_missing_is_told_with_its_cure(
        self, study: hpo.Study, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "vl_convert", None)
        with pytest.raises(PlotsMissing, match=r"pip install 'hpo-service\[plots\]'"):
            study.plot()
