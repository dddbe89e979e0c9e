"""A worker and the models of its trials: sent before the outcome, and never at its cost."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from hpo.worker import models
from hpo.worker.children import Children
from hpo.worker.models import find_model
from tests.fake_service import FakeService, problem
from tests.worker_kit import working

SAVES = "samples:saves_models"


def settings(**given: Any) -> dict[str, Any]:
    return {"keep_models": 1, "settings": {"values": [3.0, 1.0, 2.0], **given}}


def test_a_model_is_sent_after_the_reports_and_before_the_outcome(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer(SAVES, **settings())
    with working(service, children, tmp_path):
        service.wait_for("complete")
    assert service.trial_verbs == [
        "start",
        *("report", "report", "report"),
        *("model", "put_model", "complete"),
    ]
    content = b"step 1 of attempt 1"
    assert service.models == [("token-0", content)]
    assert service.all("model") == [
        {
            "token": "token-0",
            "value": None,
            "step": 1,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_bytes": len(content),
            "suffix": ".pt",
        }
    ]
    assert list(tmp_path.rglob("model*")) == [], "the trial's folder is gone as before"


def test_the_best_of_an_earlier_attempt_is_carried_over(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    """The second attempt goes on after step 1, whose model it does not beat."""
    service.offer(SAVES, **settings(pause_after=1, resume_at=2))
    with working(service, children, tmp_path):
        service.wait_for("release")
        service.offer(SAVES, number=0, attempt=2, token="second", **settings(resume_at=2))
        service.wait_for("complete")
    assert service.models == [("second", b"step 1 of attempt 1")]


def test_a_model_of_a_step_that_was_put_aside_is_not(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer(SAVES, **settings(pause_after=1))
    with working(service, children, tmp_path):
        service.wait_for("release")
        service.offer(SAVES, number=0, attempt=2, token="second", **settings(resume_at=1))
        service.wait_for("complete")
    assert service.models == [("second", b"step 1 of attempt 2")]


def refused(verb: str, document: dict[str, Any]) -> Any:
    return problem(409, "model_refused") if verb == "put_model" else None


def unwanted(verb: str, document: dict[str, Any]) -> Any:
    return (200, {"wanted": False, "reason": "no room"}) if verb == "model" else None


def broken(verb: str, document: dict[str, Any]) -> Any:
    return problem(500, "internal") if verb == "model" else None


@pytest.mark.parametrize(
    ("refuse", "text"),
    [
        (refused, "completes without its model: the service refused it: model refused"),
        (unwanted, "its model is not stored: no room"),
        (broken, "completes without its model: the service refused it: internal"),
    ],
)
def test_a_model_that_is_refused_costs_no_trial(
    service: FakeService, children: Children, tmp_path: Path, refuse: Any, text: str
) -> None:
    service.refuse = refuse
    service.offer(SAVES, **settings())
    with working(service, children, tmp_path):
        service.wait_for("complete")
        service.wait_until(lambda: text in service.log_text)


def test_a_service_that_comes_back_gets_the_model(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    n_refusals = 0

    def away_at_first(verb: str, document: dict[str, Any]) -> Any:
        nonlocal n_refusals
        if verb == "put_model" and n_refusals < 2:
            n_refusals += 1
            return problem(503, "unavailable")
        return None

    service.refuse = away_at_first
    service.offer(SAVES, **settings())
    with working(service, children, tmp_path):
        service.wait_for("complete")
    assert len(service.all("model")) == 3, "each time it is offered anew"


def test_one_that_stays_away_is_not_waited_for(
    service: FakeService, children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PATIENCE_SECONDS", 0.2)
    service.refuse = lambda verb, _: problem(503, "unavailable") if verb == "model" else None
    service.offer(SAVES, **settings())
    with working(service, children, tmp_path):
        service.wait_for("complete")
    assert service.models == []


def test_a_worker_that_stops_completes_the_trial_first(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.refuse = lambda verb, _: problem(503, "unavailable") if verb == "model" else None
    service.offer(SAVES, **settings())
    with working(service, children, tmp_path, grace_seconds=0.5):
        service.wait_for("model")
    assert service.trial_verbs[-1] == "complete"


def test_a_study_that_keeps_none_is_not_asked(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer(SAVES, settings=settings()["settings"])
    with working(service, children, tmp_path):
        service.wait_for("complete")
    assert "model" not in service.trial_verbs


class TestFinding:
    """Any file `model.*` counts, whoever wrote it."""

    @pytest.mark.parametrize(
        ("name", "step", "suffix"),
        [
            ("model.pt", None, ".pt"),
            ("model.tar.gz", None, ".tar.gz"),
            ("model.step-12.safetensors", 12, ".safetensors"),
        ],
    )
    def test_names(self, tmp_path: Path, name: str, step: int | None, suffix: str) -> None:
        (tmp_path / name).write_text("x")
        found = find_model(tmp_path, [], resumed_from_step=None)
        assert found is not None
        assert (found.path.name, found.step, found.suffix) == (name, step, suffix)

    @pytest.mark.parametrize(
        "name", ["model.pt.part", "model.pt.tmp", "model", "step-00000001.pt", ".a.model.pt"]
    )
    def test_other_files_do_not_count(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("x")
        (tmp_path / "model.folder").mkdir()
        assert find_model(tmp_path, [], resumed_from_step=None) is None

    @pytest.mark.parametrize(
        ("name", "resumed_from_step", "is_found"),
        [
            ("model.step-3.pt", 3, True),
            ("model.step-3.pt", 2, False),
            ("model.step-3.pt", None, False),
            ("model.pt", 0, True),
        ],
    )
    def test_earlier_ones_count_while_their_steps_stand(
        self, tmp_path: Path, name: str, resumed_from_step: int | None, is_found: bool
    ) -> None:
        own, earlier = tmp_path / "2", tmp_path / "1"
        for folder in (own, earlier):
            folder.mkdir()
        (earlier / name).write_text("x")
        found = find_model(own, [earlier], resumed_from_step=resumed_from_step)
        assert (found is not None) is is_found
