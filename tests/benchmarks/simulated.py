"""Simulated workers, which do all that workers do but train, and studies that keep them busy."""

from __future__ import annotations

import asyncio
import collections
import functools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo.space import parameter_to_json
from tests.benchmarks.databases import definition
from tests.benchmarks.protocol import ProtocolWorker
from tests.benchmarks.wire import Refused, Wire

RETRY_SECONDS = 1.0
WARM_UP_PAUSE, WARM_UP_SECONDS = 2.0, 120.0
DRAIN_SECONDS = 600.0
BEAT_SHARE = (0.9, 1.1)
Ack = tuple[str, int, int]  # study, trial, step


@dataclass
class Tally:
    """What the workers were told, and how long the answers took."""

    acknowledged: dict[Ack, float] = field(default_factory=dict)
    settled: set[tuple[str, int]] = field(default_factory=set)
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: collections.defaultdict(list[float])
    )
    faults: collections.Counter[str] = field(default_factory=collections.Counter)

    def note(self, verb: str, seconds: float) -> None:
        self.seconds[verb].append(seconds)

    def taken(self) -> dict[str, list[float]]:
        """The times since the last call."""
        found = dict(self.seconds)
        self.seconds.clear()
        return found


class SimulatedWorker:
    """One worker with one slot, and its heartbeat on a connection of its own."""

    def __init__(self, index: int, load: Load) -> None:
        self._load, self._tally = load, load.tally
        self._random = random.Random(index)
        self._worker = ProtocolWorker(load.port, name=f"node{index}:1", note=self._tally.note)
        self._beats = Wire(load.port)
        self._held: list[str] = []

    async def serve(self) -> None:
        """Trials until there are no more."""
        times = await self._patiently(self._worker.register)
        beating = asyncio.create_task(self._beat(float(times["heartbeat_seconds"])))
        try:
            while not self._load.is_over:
                claim = await self._patiently(lambda: self._worker.claim(2.0))
                if claim is not None:
                    await self._perform(claim)
        finally:
            beating.cancel()
            self._worker.close()
            self._beats.close()

    async def _perform(self, claim: dict[str, Any]) -> None:
        self._held = [claim["token"]]
        try:
            await self._attempt(claim)
        except Refused as refused:  # a worker ends its child then, and asks for the next trial
            self._tally.faults[f"refused: {refused.code}"] += 1
        finally:
            self._held = []

    async def _attempt(self, claim: dict[str, Any]) -> None:
        await self._say(claim, "start", resumed_from_step=None)
        value, end = 0.0, "complete"
        level = self._random.random()
        for step in range(self._load.n_reports):
            await self._rest()
            value = level + self._random.random() / (step + 1)
            answer = await self._say(
                claim, "report", step=step, value=value, elapsed_seconds=0.0, metrics={}
            )
            self._tally.acknowledged[claim["study"], claim["number"], step] = value
            if answer["verdict"] == "prune":
                end = "prune"
                break
        fields = {"value": value} if end == "complete" else {}
        await self._say(claim, end, **fields)
        self._tally.settled.add((claim["study"], claim["number"]))

    async def _say(self, claim: dict[str, Any], verb: str, **fields: Any) -> Any:
        return await self._patiently(lambda: self._worker.say(claim, verb, **fields))

    async def _rest(self) -> None:
        pause = self._load.pause
        if pause:
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))

    async def _beat(self, heartbeat_seconds: float) -> None:
        await asyncio.sleep(heartbeat_seconds * self._random.random())
        while True:
            begin = time.perf_counter()
            path, document = f"/v1/workers/{self._worker.id}/heartbeat", {"tokens": self._held}
            answer = await self._patiently(functools.partial(self._beats.post, path, document))
            self._tally.note("heartbeat", time.perf_counter() - begin)
            # A trial that was settled meanwhile is told as lost, too.
            self._tally.faults["leases lost"] += sum(
                token in self._held for token in answer["lost"]
            )
            await asyncio.sleep(heartbeat_seconds * self._random.uniform(*BEAT_SHARE))

    async def _patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Asks again while the service is away or too busy: every request may be repeated."""
        while True:
            try:
                return await call()
            except Refused as refused:
                if refused.status < 500:
                    raise
                self._tally.faults[f"answered {refused.status}, asked again"] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                self._tally.faults[f"{type(error).__name__}, asked again"] += 1
            await asyncio.sleep(RETRY_SECONDS * self._random.uniform(0.5, 1.5))


@dataclass
class Load:
    """The workers, and the studies that keep them busy."""

    port: int
    n_workers: int
    n_reports: int
    pause: float = 0.0
    tally: Tally = field(default_factory=Tally)
    launched: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    @property
    def n_per_study(self) -> int:
        return max(20, self.n_workers // 5)

    async def run(
        self, pauses: Sequence[float], seconds: float, on_step: Callable[[float | None], None]
    ) -> None:
        """One step for each pause, then what is left of the studies to its end."""
        tasks = [
            asyncio.create_task(SimulatedWorker(index, self).serve())
            for index in range(self.n_workers)
        ]
        feeding = asyncio.create_task(self._feed())
        await self._busy()
        for pause in pauses:
            self.pause = pause
            on_step(None)
            await asyncio.sleep(seconds / len(pauses))
            on_step(pause)
        feeding.cancel()
        self.pause = 0.0
        await self._drained()
        self.is_over = True
        await asyncio.gather(*tasks)

    async def _feed(self) -> None:
        """Always trials for twice as many workers as there are."""
        wire = Wire(self.port)
        while True:
            n_left = sum(self.launched.values()) - len(self.tally.settled)
            if n_left < 2 * self.n_workers:
                name = f"load-{len(self.launched)}"
                await wire.post("/v1/studies", _document(name, self.n_per_study))
                self.launched[name] = self.n_per_study
            else:
                await asyncio.sleep(0.1)

    async def _busy(self) -> None:
        """Until there are as many reports as workers: the first claims all come at once."""
        self.pause, give_up_at = WARM_UP_PAUSE, time.monotonic() + WARM_UP_SECONDS
        while len(self.tally.acknowledged) < self.n_workers and time.monotonic() < give_up_at:
            await asyncio.sleep(0.1)

    async def _drained(self) -> None:
        give_up_at = time.monotonic() + DRAIN_SECONDS
        while len(self.tally.settled) < sum(self.launched.values()):
            if time.monotonic() > give_up_at:
                self.tally.faults["the studies did not come to their end in time"] += 1
                return
            await asyncio.sleep(0.2)


def _document(name: str, n_trials: int) -> dict[str, Any]:
    made = definition()
    return {
        "name": name,
        "objective": made.objective,
        "direction": made.direction,
        "space": {key: parameter_to_json(parameter) for key, parameter in made.space.items()},
        "sampler": "random",
        "n_trials": n_trials,
    }
