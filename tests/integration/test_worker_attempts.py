"""A worker with real child processes against a scripted service: how attempts go and end."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo.worker.agent import Agent
from hpo.worker.checkpoints import trial_folder
from hpo.worker.children import Children
from hpo.worker.options import WorkerOptions
from tests.fake_service import FakeService, problem
from tests.worker_kit import CODE, await_end, await_fact, await_file, working

Perform = Callable[..., dict[str, Any]]


@pytest.fixture
def perform(service: FakeService, children: Children, tmp_path: Path) -> Perform:
    """Runs one trial of an objective to its outcome, which must be the given verb."""

    def perform(objective: str, verb: str, **members: Any) -> dict[str, Any]:
        service.offer(objective, **members)
        with working(service, children, tmp_path):
            return service.wait_for(verb)

    return perform


def await_loader() -> psutil.Process:
    """A loader process of the only trial that runs."""
    found: list[psutil.Process] = []

    def find() -> bool:
        below = psutil.Process().children(recursive=True)
        found[:] = [process for process in below if process.name() == "pt_data_worker"]
        return bool(found)

    await_fact(find)
    return found[0]


def test_reports_arrive_in_order_between_start_and_value(
    perform: Perform, service: FakeService
) -> None:
    assert perform("samples:described", "complete", params={"x": 0.5})["value"] == 0.5
    assert service.trial_verbs == ["start", "report", "report", "report", "complete"]
    assert [report["value"] for report in service.all("report")] == [0.5, 1.5, 2.5]
    assert service.all("report")[0]["metrics"] == {"loss": "NaN"}
    assert service.all("start")[0]["resumed_from_step"] is None


def test_a_verdict_prunes_the_trial(perform: Perform, service: FakeService) -> None:
    service.verdict = lambda step: {"verdict": "prune" if step == 1 else "continue"}
    perform("samples:described", "prune", params={"x": 0.5}, settings={"steps": 9})
    assert service.trial_verbs == ["start", "report", "report", "prune"]


def test_an_objective_says_from_where_it_goes_on(perform: Perform, service: FakeService) -> None:
    perform("samples:resumes", "complete", attempt=2)
    assert service.trial_verbs == ["start", "report", "report", "complete"]
    assert service.all("start")[0]["resumed_from_step"] == 3


def test_a_space_defined_by_running_is_asked_for(perform: Perform, service: FakeService) -> None:
    service.suggestions = {"x": 2.5, "kind": "b"}
    assert perform("samples:suggests", "complete")["value"] == 2.5
    asked = {asked["name"]: asked["parameter"]["type"] for asked in service.all("suggest")}
    assert asked == {"x": "float", "kind": "categorical"}


def test_known_values_are_not_asked_for(perform: Perform, service: FakeService) -> None:
    perform("samples:suggests", "complete", params={"x": 3.0, "kind": "a"}, attempt=2)
    assert not service.all("suggest")


def test_an_unchanged_optuna_objective_completes(perform: Perform, service: FakeService) -> None:
    service.suggestions = {"x": 3.0}
    assert perform("optuna_style:objective", "complete")["value"] == 1.0
    assert [report["step"] for report in service.all("report")] == list(range(10))


def test_an_unchanged_optuna_objective_is_pruned(perform: Perform, service: FakeService) -> None:
    service.suggestions = {"x": 3.0}
    service.verdict = lambda step: {"verdict": "prune" if step == 4 else "continue"}
    assert perform("optuna_style:objective", "prune")["user_attrs"] == {"pruned_at": 4}


@pytest.mark.parametrize(
    ("end", "verb", "expected"),
    [
        ("nothing", "complete", {"value": None}),
        ("nan", "complete", {"value": "NaN"}),
        ("two", "complete", {"values": [0.5, 2.0]}),
        ("pool", "complete", {"value": 1.0}),
        ("pruned", "prune", {}),
        ("released", "release", {}),
        ("text", "fail", {"reason": "invalid_result"}),
        ("bool", "fail", {"reason": "invalid_result"}),
        ("diverged", "fail", {"reason": "diverged", "message": "TrialFailed"}),
        ("error", "fail", {"reason": "objective_error", "message": "RuntimeError: my own fault"}),
        ("memory", "fail", {"reason": "out_of_memory"}),
        ("device", "fail", {"reason": "device_error"}),
        ("sys.exit", "fail", {"reason": "objective_error", "message": "sys.exit(4)"}),
        ("os._exit", "fail", {"reason": "objective_error", "message": "exit code 3"}),
        ("kill", "fail", {"reason": "lost", "message": "killed by SIGKILL"}),
        ("unnamed", "fail", {"reason": "objective_error", "message": "'x' must be a JSON value"}),
    ],
)
def test_every_end_of_an_objective_has_its_outcome(
    perform: Perform, end: str, verb: str, expected: dict[str, Any]
) -> None:
    outcome = perform("samples:ends_as_told", verb, settings={"end": end})
    message = expected.pop("message", "")
    assert message in outcome.get("message", "")
    assert outcome.items() >= expected.items()


def test_a_failure_tells_its_traceback_and_its_last_words(perform: Perform) -> None:
    failed = perform("samples:ends_as_told", "fail", settings={"end": "error"})
    assert "samples.py" in failed["traceback"]
    assert "endings.py" not in failed["traceback"]


def test_an_exit_without_result_tells_the_last_lines(perform: Perform) -> None:
    failed = perform("samples:ends_as_told", "fail", settings={"end": "os._exit"})
    assert failed["message"].endswith("last words")


def test_an_objective_that_is_not_there_fails(perform: Perform) -> None:
    failed = perform("samples:nowhere", "fail")
    assert failed["reason"] == "objective_error"
    assert "nowhere" in failed["message"]


def test_a_module_that_is_not_allowed_is_not_imported(perform: Perform) -> None:
    failed = perform("broken:anything", "fail")
    assert "--allow 'broken'" in failed["message"]


def test_a_child_is_a_fork_of_the_server_with_torch_loaded(
    perform: Perform, children: Children
) -> None:
    probe = children.start("cpu")
    assert probe.pid is not None
    server = psutil.Process(probe.pid).ppid()
    probe.end(is_asked_first=False, grace_seconds=0)
    probe.wait()
    probe.wire.close()
    os.close(probe.output_fd)
    facts = perform("samples:facts", "complete")["user_attrs"]
    assert facts["parent"] == server
    assert facts["torch_was_loaded"] is True
    assert facts["is_group_leader"] is True
    assert facts["threads"] == 1
    assert facts["visible"] == ""


def test_a_child_gets_its_trial_and_local_settings(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    for attempt in (1, 2):
        (tmp_path / "1f6d/5" / f"attempt-{attempt}").mkdir(parents=True)
    claim = {"number": 5, "attempt": 3, "direction": "maximize"}
    service.offer("samples:facts", settings={"epochs": 3, "data_dir": "/far"}, **claim)
    with working(service, children, tmp_path, settings={"data_dir": "/near", "rate": "1e-3"}):
        facts = service.wait_for("complete")["user_attrs"]
    assert facts["settings"] == {"epochs": 3, "data_dir": "/near", "rate": 0.001}
    assert facts["resume_dirs"] == ["attempt-2", "attempt-1"]
    assert facts["own_dir"] == "attempt-3"
    assert facts["direction"] == "maximize"
    assert not (tmp_path / "1f6d").exists()  # the trial has ended


def test_spawned_children_share_nothing(service: FakeService, tmp_path: Path) -> None:
    options = WorkerOptions(url=service.url, code=CODE, isolation="spawn")
    children = Children(options, n_threads=1)
    service.offer("samples:facts")
    with working(service, children, tmp_path):
        facts = service.wait_for("complete")["user_attrs"]
    children.close()
    assert facts["torch_was_loaded"] is False
    assert facts["is_group_leader"] is True


def test_a_lost_lease_ends_a_child_that_ignores_sigterm(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    claim = service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with working(service, children, tmp_path):
        service.wait_for("report")
        service.lost_tokens.add(claim["token"])
        await_end(int(pid_file.read_text()))
        service.offer("samples:described", params={"x": 0.5})
        service.wait_for("complete")  # the slot is free again
    assert [document["token"] for document in service.all("complete")] == ["token-1"]
    assert not service.all("fail")


def test_a_refused_report_ends_the_child(service: FakeService, perform: Perform) -> None:
    service.refuse = lambda verb, _: problem(422, "invalid") if verb == "report" else None
    failed = perform("samples:described", "fail", params={"x": 0.5})
    assert failed["reason"] == "objective_error"
    assert "invalid" in failed["message"]


def test_a_step_reported_again_is_ignored_with_a_warning(
    service: FakeService, perform: Perform
) -> None:
    service.refuse = lambda verb, _: problem(409, "step_reported") if verb == "report" else None
    perform("samples:described", "complete", params={"x": 0.5})
    assert "hpo: step 0 has been reported with another value" in service.log_text


def test_a_lost_lease_is_noticed_by_a_report(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.heartbeat_seconds = 3600.0
    pid_file = tmp_path / "pid"
    claim = service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    service.lost_tokens.add(claim["token"])
    service.refuse = lambda verb, _: (204, None) if verb == "start" else None
    with working(service, children, tmp_path):
        service.wait_for("report")
        await_end(int(pid_file.read_text()))
    assert service.trial_verbs == ["start", "report"]


def test_the_folder_of_a_trial_that_ended_elsewhere_is_removed(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    """One whose lease is another attempt's stays: that attempt goes on from there."""
    service.heartbeat_seconds = 3600.0
    claim = service.offer("samples:stubborn", settings={"pid_file": str(tmp_path / "pid")})
    folder = trial_folder(tmp_path, claim["study_uuid"], claim["number"])
    was_there = []

    def refuse(verb: str, _: dict[str, Any]) -> Any:
        if verb == "report":
            was_there.append(folder.exists())
            return problem(409, "trial_finished")
        return None

    service.refuse = refuse
    with working(service, children, tmp_path):
        service.wait_for("report")
        await_fact(lambda: not folder.exists())
    assert was_there == [True]


def test_reports_wait_while_the_api_is_away_and_arrive_once_in_order(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("samples:described", params={"x": 0.0}, settings={"steps": 30})

    def go_away_after_step_3(step: int) -> dict[str, Any]:
        service.is_away = step == 3
        return {"verdict": "continue"}

    service.verdict = go_away_after_step_3
    with working(service, children, tmp_path):
        with service.changed:
            assert service.changed.wait_for(lambda: service.turned_away.count("report") > 2, 30)
        service.is_away = False
        service.wait_for("complete")
    assert [report["step"] for report in service.all("report")] == list(range(30))


def test_lost_answers_are_asked_for_again(service: FakeService, perform: Perform) -> None:
    service.answers_to_lose = 2
    perform("samples:described", "complete", params={"x": 0.5})
    heard = [report["step"] for report in service.all("report")]
    assert heard == [0, 0, 0, 1, 2]


def test_a_late_verdict_reaches_the_child(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    goes_on = tmp_path / "goes-on"
    service.offer("samples:late", settings={"goes_on": str(goes_on)})

    def prune_once_the_child_trains_on(_: int) -> dict[str, Any]:
        await_file(goes_on)
        return {"verdict": "prune"}

    service.verdict = prune_once_the_child_trains_on
    with working(service, children, tmp_path):
        service.wait_for("prune")


def test_a_verdict_of_an_outage_is_obeyed_after_it(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    """The child reports on; it hears of step 3 when the API is back."""
    service.offer("faulty:steady", settings={"reports": 1000, "pause": 0.02})

    def prune_at_3(step: int) -> dict[str, Any]:
        return {"verdict": "prune" if step == 3 else "continue"}

    service.verdict = prune_at_3
    with working(service, children, tmp_path):
        service.wait_for("report", 2)
        service.is_away = True
        with service.changed:
            assert service.changed.wait_for(lambda: service.turned_away.count("report") > 5, 30)
        service.is_away = False
        service.wait_for("prune")
    steps = [report["step"] for report in service.all("report")]
    assert steps == list(range(len(steps)))
    assert len(steps) > 4
    assert len(service.all("prune")) == 1


def test_a_lease_that_was_lost_in_an_outage_ends_the_child_after_it(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    claim = service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with working(service, children, tmp_path):
        service.wait_for("report")
        service.is_away = True
        with service.changed:
            assert service.changed.wait_for(lambda: "heartbeat" in service.turned_away, 30)
        assert psutil.pid_exists(int(pid_file.read_text()))
        service.lost_tokens.add(claim["token"])
        service.is_away = False
        await_end(int(pid_file.read_text()))
    assert service.trial_verbs == ["start", "report"]


def test_an_api_that_stays_away_ends_the_child(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with working(service, children, tmp_path, max_offline_seconds=0.5):
        service.wait_for("report")
        service.is_away = True
        await_end(int(pid_file.read_text()))
        service.is_away = False


def test_a_service_that_forgot_the_worker_gets_to_know_it_again(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    with working(service, children, tmp_path):
        service.wait_for("heartbeat")
        service.known_workers.clear()
        service.wait_for("register", 2)
        service.offer("samples:described", params={"x": 0.5})
        service.wait_for("complete")


def test_draining_lets_a_child_write_its_checkpoint(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("samples:gentle")
    with working(service, children, tmp_path) as agent:
        service.wait_for("report")
        agent.drain()
        service.wait_for("release")
    assert (tmp_path / "1f6d/0/attempt-1/checkpoint").read_text() == "all of it"


def test_a_signal_to_all_processes_lets_children_write_their_checkpoints(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("samples:gentle")
    with working(service, children, tmp_path):
        service.wait_for("report")
        for process in psutil.Process().children(recursive=True):
            process.send_signal(signal.SIGTERM)
        service.wait_for("release")
        service.offer("samples:described", params={"x": 0.5})
        service.wait_for("complete")
    assert (tmp_path / "1f6d/0/attempt-1/checkpoint").exists()


def test_a_signal_to_a_loader_as_well_gives_the_trial_back(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("faulty:loads")
    with working(service, children, tmp_path):
        service.wait_for("report")
        loader = await_loader()
        for process in (loader.parent(), loader):
            process.send_signal(signal.SIGTERM)
        service.wait_for("release")
    assert not service.all("fail")


def test_a_child_that_does_not_stop_is_ended_and_its_trial_given_back(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with working(service, children, tmp_path, grace_seconds=0.2) as agent:
        service.wait_for("report")
        agent.drain()
        service.wait_for("release")
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert not service.all("fail")


def test_endless_output_is_bounded_and_harms_nothing(
    service: FakeService, perform: Perform
) -> None:
    perform("samples:noisy", "complete", settings={"lines": 2_000})
    longest = max(len(chunk["text"]) for log in service.all("log") for chunk in log["chunks"])
    assert longest <= 65_536
    assert len(service.log_text) < 2_000_000
    assert "characters of output left out here]" in service.log_text
    assert "\0" not in service.log_text


def test_what_a_child_leaves_behind_ends_with_it(service: FakeService, perform: Perform) -> None:
    perform("samples:ends_as_told", "complete", settings={"end": "loader"})
    await_end(int(service.log_text.split()[1]))


def test_a_dead_fork_server_is_started_anew_and_its_trial_is_lost(
    service: FakeService, tmp_path: Path
) -> None:
    options = WorkerOptions(url=service.url, code=CODE, isolation="spawn")
    children = Children(options, n_threads=1)
    pid_file = tmp_path / "pid"
    service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with working(service, children, tmp_path):
        service.wait_for("report")
        child = psutil.Process(int(pid_file.read_text()))
        os.kill(child.ppid(), signal.SIGKILL)
        assert service.wait_for("fail")["reason"] == "lost"
        await_end(child.pid)
        service.offer("samples:described", params={"x": 0.5})
        service.wait_for("complete")
    children.close()


def test_a_trial_is_given_back_when_no_child_can_start(
    service: FakeService, tmp_path: Path
) -> None:
    options = WorkerOptions(url=service.url, python=str(tmp_path / "no-python"))
    service.offer("samples:described")
    with working(service, Children(options, n_threads=1), tmp_path):
        service.wait_for("release")
    assert service.trial_verbs == ["release"]


def test_a_draining_worker_gives_back_what_its_last_poll_brought(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    agents: list[Agent] = []
    is_watching = threading.Event()

    def drain_during_a_poll(verb: str, _: dict[str, Any]) -> None:
        if verb == "claims" and is_watching.is_set() and not agents[0].draining.is_set():
            agents[0].drain()
            service.offer("samples:described", params={"x": 0.5})

    service.refuse = drain_during_a_poll
    with working(service, children, tmp_path) as agent:
        agents.append(agent)
        is_watching.set()
        service.wait_for("release")
    assert service.trial_verbs == ["release"]


def test_checkpoints_of_trials_that_ended_elsewhere_are_swept(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    for folder in ("1f6d/1", "1f6d/2", "1f6d/3", "1f6d/4", "0000/1", "1f6d/notes"):
        (tmp_path / folder / "attempt-1").mkdir(parents=True)
    service.studies = [{"uuid": "1f6d", "name": "digits"}, {"uuid": "aaaa", "name": "other"}]
    service.trials = {
        1: {"number": 1, "state": "COMPLETE"},
        2: {"number": 2, "state": "RUNNING"},
        4: {"number": 4, "state": "FAIL"},
    }
    with working(service, children, tmp_path):
        await_fact(lambda: not (tmp_path / "1f6d/4").exists())
    left = sorted(str(folder.relative_to(tmp_path)) for folder in tmp_path.glob("*/*"))
    assert left == ["0000/1", "1f6d/2", "1f6d/3", "1f6d/notes"]


def test_a_worker_without_old_checkpoints_asks_nothing(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    with working(service, children, tmp_path):
        service.wait_for("heartbeat")
    assert not service.questions


def test_checkpoints_of_a_deleted_study_go_when_its_children_have_ended(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    deleted, held, unknown = (str(uuid.uuid4()) for _ in range(3))
    for study in (deleted, held, unknown):
        (tmp_path / study / "7" / "attempt-1").mkdir(parents=True)
    claim = service.offer("samples:gentle", study_uuid=held)
    with working(service, children, tmp_path):
        service.wait_for("report")
        service.deleted = [deleted, held]
        await_fact(lambda: not (tmp_path / deleted).exists())
        service.wait_for("heartbeat", len(service.all("heartbeat")) + 2)
        assert (tmp_path / held).exists(), "its child may still write there"
        service.lost_tokens.add(claim["token"])
        await_fact(lambda: not (tmp_path / held).exists())
    assert (tmp_path / unknown / "7" / "attempt-1").exists()
