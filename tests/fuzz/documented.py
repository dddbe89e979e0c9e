"""Requests whose answers are held to the OpenAPI document: status, strict JSON, schema."""

from __future__ import annotations

from typing import Any

import httpx2
from jsonschema import Draft202012Validator

from tests.api_kit import read


class Documented:
    """Sends requests, and looks at each answer: documented, strict JSON, of the schema told."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        self._document = client.get("/openapi.json").json()
        self._validators: dict[tuple[str, str], Draft202012Validator] = {}

    def __call__(
        self, method: str, template: str, path: str | None = None, **options: Any
    ) -> httpx2.Response:
        """`template` names the operation of the document; `path` is where it is sent."""
        answer = self._client.request(method, path or template, **options)
        said = f"{method} {path or template} {options}: {answer.status_code} {answer.text[:500]}"
        assert answer.status_code < 500, said
        responses = self._document["paths"][template][method.lower()]["responses"]
        assert str(answer.status_code) in responses, said
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if media_type.endswith("json") and answer.content:
            self._check(f"{method} {template}", str(answer.status_code), media_type, answer)
        return answer

    def _check(self, name: str, status: str, media_type: str, answer: httpx2.Response) -> None:
        if (name, status) not in self._validators:
            method, _, template = name.partition(" ")
            responses = self._document["paths"][template][method.lower()]["responses"]
            schema = responses[status]["content"][media_type]["schema"]
            parts = {"components": self._document["components"]}
            self._validators[name, status] = Draft202012Validator({**schema, **parts})
        faults = list(self._validators[name, status].iter_errors(read(answer)))
        assert not faults, (name, faults[0].message)
