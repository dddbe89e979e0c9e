"""The version of a study as an ETag, and If-Match: change only what one has seen.

The ETag names the definition, the budget and the state. It does not change with the trials, so a
study can be changed while it is busy; hence there is no 304 either, which would hide their counts.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Response

from api.errors import InvalidRequest
from api.faults import Fault
from storage.records import StudyRecord

# A proxy that compresses makes an ETag weak; what it names is the same here.
ETAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')
ETAGS = r'\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*'


async def _versions(
    if_match: Annotated[
        str | None,
        Header(
            max_length=1000,
            json_schema_extra={"pattern": f"^(?:{ETAGS})$"},
            description="The ETag of the study as it was read; 412 when it has changed since.",
        ),
    ] = None,
) -> frozenset[str] | None:
    if if_match is None or if_match.strip() == "*":
        return None
    tags = [ETAG.fullmatch(tag.strip()) for tag in if_match.split(",")]
    if not all(tags):
        sentence = f"must be the ETag of an answer, in double quotes, or *, got {if_match[:60]!r}"
        raise InvalidRequest([Fault("If-Match", sentence)])
    return frozenset(tag[1] for tag in tags if tag)


# None: whatever the study is like.
Versions = Annotated[frozenset[str] | None, Depends(_versions)]


def set_etag(response: Response, study: StudyRecord) -> None:
    """Names the version of the study that is sent."""
    response.headers["ETag"] = f'"{study.version}"'
