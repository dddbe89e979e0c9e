"""Sequences of requests to a running service, and what must hold after any of them.

Hypothesis chooses what users, workers and programs that ask and tell do next. A model remembers
what they were answered, and each look at a study compares it with what the service says.
"""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hpo.numbers import encode_number
from hpo.trial import Reason
from tests.api_kit import Node, await_fact, read
from tests.fuzz.documented import Documented

SPACE = {
    "x": {"type": "float", "low": -1.0, "high": 1.0},
    "kind": {"type": "categorical", "choices": ["a", [1, 2]]},
}
LOOKS = (
    *("best", "importances", "history", "pareto", "pruning", "export", "export?format=csv"),
    *("trials?sort=value&descending=true", "trials?state=FAIL&curves=true", "trials/0/log"),
)
VERBS = ("pause", "resume", "stop", "cancel", "archive", "unarchive")
VALUES = st.floats() | st.sampled_from([0.0, 1.0, math.nan, math.inf])
KEYS = st.sampled_from([None, "one", "two"])
SOME = st.integers(0, 10**6)


@dataclass
class Attempt:
    """A token and whose it was; `curve` is what was accepted from it."""

    study: str
    number: int
    token: str
    curve: dict[int, float | str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/v1/studies/{self.study}/trials/{self.number}"


class Service(RuleBasedStateMachine):
    """One example: some studies of its own on a service that others use as well."""

    def __init__(self, client: httpx2.Client, send: Documented) -> None:
        super().__init__()
        self.send, self.node = send, Node(client)
        self.prefix = f"m{uuid.uuid4().hex[:8]}"
        self.studies: list[str] = []
        self.held: list[Attempt] = []
        self.ended: list[Attempt] = []

    def study(self, verb: str = "", *, index: int, method: str = "POST", **options: Any) -> Any:
        name = self.studies[index % len(self.studies)]
        return self.send(
            method,
            f"/v1/studies/{{study}}{verb.partition('?')[0]}",
            f"/v1/studies/{name}{verb}",
            **options,
        )

    def tell(self, attempt: Attempt, verb: str, **body: Any) -> httpx2.Response:
        return self.send(
            "POST",
            f"/v1/studies/{{study}}/trials/{{number}}/{verb}",
            f"{attempt.path}/{verb}",
            json={"token": attempt.token, **body},
        )

    def take(self, answer: dict[str, Any]) -> None:
        """A trial was handed out; asked for again by the same key, it is the one we know."""
        known = {attempt.token for attempt in (*self.held, *self.ended)}
        if answer["token"] not in known:
            self.held.append(Attempt(answer["study"], answer["number"], answer["token"]))

    def drop(self, attempt: Attempt) -> None:
        self.held.remove(attempt)
        self.ended.append(attempt)

    # Studies

    @initialize()
    def begin(self) -> None:
        for index, for_workers in enumerate((False, True)):
            self.create(index, 4, "minimize", "median", for_workers, None)

    @rule(
        index=st.integers(0, 2),
        n_trials=st.integers(1, 4),
        direction=st.sampled_from(["minimize", "maximize"]),
        pruner=st.sampled_from(["none", "median"]),
        for_workers=st.booleans(),
        parallel=st.sampled_from([None, 1]),
    )
    def create(
        self,
        index: int,
        n_trials: int,
        direction: str,
        pruner: str,
        for_workers: bool,
        parallel: int | None,
    ) -> None:
        name = f"{self.prefix}-{index}"
        body = {
            "name": name,
            "objective": self.node.objective if for_workers else None,
            "n_trials": n_trials,
            "direction": direction,
            "space": SPACE,
            "sampler": "random",
            "pruner": {"name": pruner, **({"n_startup_trials": 0} if pruner == "median" else {})},
            "max_parallel_trials": parallel,
            "max_attempts": 2,
            "retry_backoff_seconds": 0,
        }
        answer = self.send("POST", "/v1/studies", json=body)
        assert answer.status_code in (200, 201, 409)
        assert (answer.status_code == 201) == (name not in self.studies), answer.text
        if answer.status_code == 201:
            self.studies.append(name)

    @precondition(lambda self: self.studies)
    @rule(index=SOME, verb=st.sampled_from(VERBS), now=st.booleans())
    def turn(self, index: int, verb: str, now: bool) -> None:
        body = {"json": {"now": now}} if verb == "cancel" else {}
        answer = self.study(f"/{verb}", index=index, **body)
        again = self.study(f"/{verb}", index=index, **body)
        assert again.status_code == answer.status_code

    @precondition(lambda self: self.studies)
    @rule(index=SOME, n_trials=st.integers(1, 8), tag=st.text(max_size=3))
    def amend(self, index: int, n_trials: int, tag: str) -> None:
        changes = {"n_trials": n_trials, **({"tags": [tag]} if tag else {})}
        self.study(index=index, method="PATCH", json=changes)

    @precondition(lambda self: self.studies)
    @rule(index=SOME, copy=st.integers(0, 2), keep=st.booleans())
    def clone(self, index: int, copy: int, keep: bool) -> None:
        name = f"{self.prefix}-{copy}"
        body = {"name": name, "import_trials": keep}
        answer = self.study("/clone", index=index, json=body)
        assert answer.status_code in (201, 409, 422)
        if answer.status_code == 201:
            self.studies.append(name)

    @precondition(lambda self: len(self.studies) == 3)
    @rule(index=SOME, force=st.booleans())
    def delete(self, index: int, force: bool) -> None:
        name = self.studies[index % len(self.studies)]
        query = {"force": "true"} if force else {}
        answer = self.study(index=index, method="DELETE", params=query)
        assert answer.status_code in ((202,) if force else (202, 409)), answer.text
        if answer.status_code == 202:
            await_fact(lambda: self.study(index=index, method="GET").status_code == 404)
            self.studies.remove(name)
            self.held = [attempt for attempt in self.held if attempt.study != name]
            self.ended = [attempt for attempt in self.ended if attempt.study != name]

    # Trials

    @precondition(lambda self: self.studies)
    @rule(index=SOME, count=st.integers(1, 2), key=KEYS)
    def ask(self, index: int, count: int, key: str | None) -> None:
        headers = {} if key is None else {"Idempotency-Key": f"{self.prefix}-{key}"}
        answer = self.study("/ask", index=index, json={"count": count}, headers=headers)
        if answer.status_code == 200:
            for trial in read(answer)["trials"]:
                self.take(trial)

    @precondition(lambda self: self.studies)
    @rule()
    def claim(self) -> None:
        body = {"worker_id": self.node.id, "claim_key": uuid.uuid4().hex, "device": "cpu"}
        answer = self.send("POST", "/v1/claims", json={**body, "wait_seconds": 0})
        if answer.status_code == 200:
            self.take(read(answer))

    @precondition(lambda self: self.held)
    @rule(index=SOME, values=st.lists(VALUES, min_size=1, max_size=3))
    def report(self, index: int, values: list[float]) -> None:
        attempt = self.held[index % len(self.held)]
        for step, value in enumerate(values):
            if attempt in self.held:
                self.report_one(attempt, step, encode_number(value))

    def report_one(self, attempt: Attempt, step: int, sent: float | str) -> None:
        answer = self.tell(attempt, "report", step=step, value=sent)
        if answer.status_code == 200:
            assert attempt.curve.setdefault(step, sent) == sent
            again = self.tell(attempt, "report", step=step, value=sent)
            assert read(again) == read(answer)
        elif read(answer)["code"] == "step_reported":
            assert attempt.curve[step] != sent
        else:
            self.drop(attempt)

    @precondition(lambda self: self.held)
    @rule(
        index=SOME,
        end=st.sampled_from(["complete", "complete", "complete", "prune", "release"])
        | st.sampled_from(list(Reason)).map(lambda reason: f"fail {reason}"),
        value=st.none() | st.floats(-1, 1) | VALUES,
    )
    def settle(self, index: int, end: str, value: float | None) -> None:
        attempt = self.held[index % len(self.held)]
        verb, _, reason = end.partition(" ")
        sent = None if value is None else encode_number(value)
        body = {"complete": {"value": sent}, "fail": {"reason": reason}}.get(verb, {})
        answer = self.tell(attempt, verb, **body)
        if answer.status_code == 422:
            assert (verb, value, attempt.curve) == ("complete", None, {})
            return
        assert self.tell(attempt, verb, **body).text == answer.text or answer.status_code == 409
        self.drop(attempt)
        if verb == "complete" and answer.status_code == 200:
            other = 0.5 if sent != 0.5 else 0.25
            assert self.tell(attempt, verb, value=other).status_code == 409

    @precondition(lambda self: self.ended)
    @rule(index=SOME, verb=st.sampled_from(["start", "report", "renew"]))
    def write_with_a_token_of_the_past(self, index: int, verb: str) -> None:
        attempt = self.ended[index % len(self.ended)]
        body = {"step": 7, "value": 7.0} if verb == "report" else {}
        before = self.trial(attempt)
        assert self.tell(attempt, verb, **body).status_code in (409, 404)
        assert self.trial(attempt) == before

    @precondition(lambda self: self.studies)
    @rule(
        index=SOME,
        x=st.lists(st.floats(-1, 1), min_size=1, max_size=2),
        extend=st.booleans(),
        key=KEYS,
    )
    def enqueue(self, index: int, x: list[float], extend: bool, key: str | None) -> None:
        headers = {} if key is None else {"Idempotency-Key": f"{self.prefix}-{key}"}
        body = {"points": [{"params": {"x": one}} for one in x], "extend": extend}
        self.study("/trials", index=index, json=body, headers=headers)

    @precondition(lambda self: self.studies)
    @rule(
        index=SOME,
        number=st.integers(0, 2),
        verb=st.sampled_from(["cancel", "requeue", "exclude", "include"]),
    )
    def change(self, index: int, number: int, verb: str) -> None:
        template = f"/v1/studies/{{study}}/trials/{{number}}/{verb}"
        name = self.studies[index % len(self.studies)]
        self.send("POST", template, template.format(study=name, number=number))

    # What must hold

    @precondition(lambda self: self.studies)
    @rule(index=SOME, look=st.sampled_from(LOOKS))
    def look(self, index: int, look: str) -> None:
        name = self.studies[index % len(self.studies)]
        template = f"/v1/studies/{{study}}/{look.partition('?')[0]}".replace("/0/", "/{number}/")
        self.send("GET", template, f"/v1/studies/{name}/{look}")

    @precondition(lambda self: self.studies)
    @rule(index=SOME)
    def check(self, index: int) -> None:
        self.check_study(self.studies[index % len(self.studies)])

    def teardown(self) -> None:
        for name in self.studies:
            self.check_study(name)
            self.send("DELETE", "/v1/studies/{study}", f"/v1/studies/{name}?force=true")

    def trial(self, attempt: Attempt) -> Any:
        template = "/v1/studies/{study}/trials/{number}"
        return read(self.send("GET", template, attempt.path))

    def check_study(self, name: str) -> None:
        template, path = "/v1/studies/{study}", f"/v1/studies/{name}"
        held = self.renewed(name)
        study = read(self.send("GET", template, path))
        page = self.send("GET", f"{template}/trials", f"{path}/trials?limit=500&curves=true")
        trials = read(page)["items"]
        assert [trial["number"] for trial in trials] == list(range(len(trials)))
        counts = Counter(trial["state"] for trial in trials)
        assert {state: n for state, n in study["counts"].items() if n} == counts
        assert study["n_started"] <= study["budget"]["n_trials"]
        is_over = study["state"] in ("completed", "stopped", "failed")
        assert not (is_over and counts["RUNNING"]), study
        self.check_attempts(name, trials, held)
        self.check_best(study, trials)
        self.check_events(name, trials)

    def renewed(self, name: str) -> set[int]:
        """Numbers of the trials that are held by a token of ours; no two hold the same."""
        numbers = []
        for attempt in [attempt for attempt in self.held if attempt.study == name]:
            if self.tell(attempt, "renew").status_code == 204:
                numbers.append(attempt.number)
            else:
                self.drop(attempt)
        assert len(numbers) == len(set(numbers))
        return set(numbers)

    def check_attempts(self, name: str, trials: list[dict[str, Any]], held: set[int]) -> None:
        running = {t["number"] for t in trials if t["state"] == "RUNNING"}
        waiting = {t["number"] for t in trials if t["awaiting_attempt"]}
        assert running - waiting == held
        for attempt in (one for one in self.held if one.study == name):
            trial = trials[attempt.number]
            said = {point["step"]: point["value"] for point in trial["curve"]}
            assert said == said | attempt.curve, (attempt, trial)

    def check_best(self, study: dict[str, Any], trials: list[dict[str, Any]]) -> None:
        values = [
            trial["value"]
            for trial in trials
            if trial["state"] == "COMPLETE"
            and trial["exclusion"] is None
            and isinstance(trial["value"], float)
        ]
        choose = min if study["direction"] == "minimize" else max
        assert (study["best"] and study["best"]["value"]) == (choose(values) if values else None)

    def check_events(self, name: str, trials: list[dict[str, Any]]) -> None:
        template, path = "/v1/studies/{study}/events", f"/v1/studies/{name}/events"
        stream = self.send("GET", template, f"{path}?after=0&until=now").text
        told = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
        ended = Counter(event["number"] for event in told if event.get("kind") == "trial_ended")
        assert all(n == 1 for n in ended.values()), ended
        finished = {t["number"] for t in trials if t["state"] in ("COMPLETE", "PRUNED", "FAIL")}
        assert ended.keys() <= finished
