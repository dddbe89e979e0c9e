"""What a worker says to the service, beside what every client may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpo.client import NO_CONTENT, Client, trial_path
from hpo.connection import Document, read

MODEL_SECONDS = 300.0  # until the service has a whole model on its disk


class WorkerClient(Client):
    """A client of a node: it registers, beats, claims trials and sends their models."""

    def register(self, document: Document) -> dict[str, Any]:
        """Registers a worker process; the answer holds the heartbeat and lease times."""
        return self._post("/v1/workers", document)

    def heartbeat(self, worker_id: str, tokens: Sequence[str]) -> dict[str, Any]:
        """Renews the leases of `tokens`; the answer lists those that are lost."""
        document = {"tokens": list(tokens)}
        return self._post(f"/v1/workers/{worker_id}/heartbeat", document)

    def claim(self, document: Document) -> dict[str, Any] | None:
        """A trial under a lease; None when there was none within its `wait_seconds`."""
        wait_seconds = float(document.get("wait_seconds", 0))
        response = self._send("POST", "/v1/claims", document, wait_seconds=wait_seconds)
        return None if response.status_code == NO_CONTENT else read(response)

    def offer_model(self, study: str, number: int, document: Document) -> dict[str, Any]:
        """Whether the service wants the model of a trial that a worker holds."""
        return self._post(f"{trial_path(study, number)}/model", document)

    def put_model(
        self, study: str, number: int, pieces: Iterator[bytes], *, size_bytes: int, token: str
    ) -> None:
        """Sends the model that was offered, piece by piece."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size_bytes),
            "Lease-Token": token,
        }
        path = f"{trial_path(study, number)}/model"
        self._upload("PUT", path, pieces, read_seconds=MODEL_SECONDS, headers=headers)
