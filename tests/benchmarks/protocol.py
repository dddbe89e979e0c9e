"""A worker as the service sees it: it claims, starts, reports and settles, and trains nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from hpo.version import PROTOCOL_VERSION, __version__
from tests.benchmarks.databases import LOWEST_STORED, MODULE, N_REPORTS
from tests.benchmarks.wire import Wire

CLAIM_SECONDS = 20.0


def curve(n_reports: int = N_REPORTS) -> list[float]:
    """What a trial reports: always less than stored trials did, so that none is pruned."""
    return [LOWEST_STORED * (0.5 + 0.1 / (step + 1)) for step in range(n_reports)]


class ProtocolWorker:
    """One worker with one slot on one connection; `note` is told each request and its seconds."""

    def __init__(
        self,
        port: int,
        *,
        allow: Sequence[str] = (MODULE,),
        name: str = "bench:0",
        note: Callable[[str, float], None] = lambda verb, seconds: None,
    ) -> None:
        self._wire = Wire(port)
        self._allow, self._name, self._note = list(allow), name, note
        self.id = str(uuid.uuid4())

    def close(self) -> None:
        self._wire.close()

    async def register(self) -> dict[str, Any]:
        document = {
            "id": self.id,
            "name": self._name,
            "version": __version__,
            "protocol": PROTOCOL_VERSION,
            "slots": 1,
            "devices": ["cpu"],
            "allow": self._allow,
            "objectives": [],
        }
        return await self._post("register", "/v1/workers", document)

    async def claim(self, wait_seconds: float = CLAIM_SECONDS) -> dict[str, Any] | None:
        document = {
            "worker_id": self.id,
            "claim_key": uuid.uuid4().hex,
            "device": "cpu",
            "wait_seconds": wait_seconds,
        }
        return await self._post("claim", "/v1/claims", document)

    async def say(self, claim: dict[str, Any], verb: str, **fields: Any) -> Any:
        path = f"/v1/studies/{claim['study']}/trials/{claim['number']}/{verb}"
        return await self._post(verb, path, {"token": claim["token"], **fields})

    async def report(self, claim: dict[str, Any], step: int, value: float) -> dict[str, Any]:
        fields = {"elapsed_seconds": 0.0, "metrics": {}, "user_attrs": {}}
        return await self.say(claim, "report", step=step, value=value, **fields)

    async def serve_one(self, n_reports: int = N_REPORTS) -> bool:
        """One trial from its claim to its end; False when there was none."""
        claim = await self.claim()
        if claim is None:
            return False
        await self.say(claim, "start", resumed_from_step=None)
        value = 0.0
        for step, value in enumerate(curve(n_reports)):
            answer = await self.report(claim, step, value)
            assert answer["verdict"] == "continue", answer
        await self.say(claim, "complete", value=value, user_attrs={})
        return True

    async def _post(self, verb: str, path: str, document: dict[str, Any]) -> Any:
        begin = time.perf_counter()
        answer = await self._wire.post(path, document)
        self._note(verb, time.perf_counter() - begin)
        return answer
