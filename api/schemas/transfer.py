"""Clones, warm starts, exports, imports and adoptions in bodies and replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from api.errors import InvalidRequest
from api.faults import Fault
from api.schemas.base import WHOLE, Body, Bool, JsonObject, Query, Reply
from api.schemas.points import Extend
from api.schemas.studies import StudyReply
from api.schemas.study_create import NewName, StudyCreate
from api.schemas.study_reading import study_text
from hpo.errors import InvalidField
from hpo.objective import Descriptor
from hpo.study import StudyDefinition
from storage.adoption import Adopted
from storage.cloning import Cloned
from storage.documents import definition_to_request
from storage.importing import Imported
from storage.records import StudyRecord
from storage.transfer import StudyCopy, TrialCopy

# Of these a change names single members; each of them is replaced whole, null takes it away.
MERGED = ("space", "settings")
MAX_BEST = 1000


class CloneBody(Body):
    """The new study's name, and what is different in it.

    `changes` are fields of the study document. Each replaces the old one, null takes it back to
    its default; of `space` and `settings` only the members that are named change.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "digits-2",
                    "changes": {
                        "space": {"batch": {"type": "categorical", "choices": [64, 128, 256]}}
                    },
                }
            ]
        }
    )

    name: NewName
    changes: JsonObject = Field(default_factory=dict)
    import_trials: Bool = True

    def changed(self, old: StudyDefinition) -> dict[str, Any]:
        """The document of the new study. Raises InvalidRequest for a change that cannot be."""
        document = definition_to_request(old)
        changes = dict(self.changes)
        if "name" in changes:
            raise InvalidRequest([Fault("changes.name", "stands beside the changes, as name")])
        for field in MERGED:
            if isinstance(changes.get(field), dict):
                changes[field] = _merged(document.get(field) or {}, changes[field])
        document = _without_other_form(document, changes)
        return _with_steps({**document, **changes, "name": self.name}, old, self.changes)


def _merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {**old, **changes}
    return {name: value for name, value in both.items() if value is not None}


def _without_other_form(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Without `direction` where the changes say `directions`, and the other way round."""
    pairs = (("direction", "directions"), ("metric", "metrics"))
    others = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
    dropped = {others[name] for name in changes if name in others}
    return {name: value for name, value in document.items() if name not in dropped}


def _with_steps(
    document: dict[str, Any], old: StudyDefinition, changes: dict[str, Any]
) -> dict[str, Any]:
    """Lets max_steps follow a change of epochs, if it was the number of epochs before."""
    epochs = (changes.get("settings") or {}).get("epochs")
    follows = old.max_steps is not None and old.max_steps == old.settings.get("epochs")
    if epochs is None or not follows or "max_steps" in changes:
        return document
    if type(epochs) is not int or epochs < 1:
        sentence = f"must be a whole number of 1 or more, got {epochs!r}"
        raise InvalidRequest([Fault("changes.settings.epochs", sentence)])
    return {**document, "max_steps": epochs}


def definition_from(
    document: Any,
    place: str,
    *,
    draw_seed: Callable[[], int],
    descriptor: Descriptor | None = None,
) -> StudyDefinition:
    """Checks a document that lies within another one, as a request for a new study.

    Raises InvalidRequest whose faults begin with `place`.
    """
    try:
        body = StudyCreate.model_validate(document)
        return body.to_definition(descriptor, draw_seed=draw_seed)
    except InvalidField as error:
        raise InvalidRequest([Fault(f"{place}.{error.field}", error.message)]) from None
    except InvalidRequest as error:
        faults = [Fault(f"{place}.{e['field']}", e["message"]) for e in error.facts["errors"]]
        raise InvalidRequest(faults) from None


class CloneReply(Reply):
    """The new study; `misfits` counts the trials that were left out by the parameters at fault."""

    study: StudyReply
    n_imported: int
    n_left_out: int
    misfits: dict[str, int]

    @classmethod
    def of(cls, study: StudyRecord, cloned: Cloned) -> CloneReply:
        return cls.taken_from(cloned, study=StudyReply.of(study), misfits=dict(cloned.misfits))


class WarmStartBody(Body):
    """Whose best trials are to be tried, and how many of them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        populate_by_name=True, json_schema_extra={"examples": [{"from": "digits", "k": 5}]}
    )

    source: Annotated[NewName, Field(alias="from")]
    k: Annotated[int, Field(strict=True, ge=1, le=MAX_BEST), WHOLE] = 5
    extend: Extend = False


class WarmStartReply(Reply):
    """The numbers of the new trials, the best first, and which parameters kept others out."""

    study: str
    numbers: list[int]
    misfits: dict[str, int]


class AdoptReply(Reply):
    """The study as it is now; `n_failed` of its trials were left RUNNING and are FAIL."""

    study: StudyReply
    n_trials: int
    n_failed: int

    @classmethod
    def of(cls, adopted: Adopted) -> AdoptReply:
        return cls.taken_from(adopted, study=StudyReply.of(adopted.study))


class ExportQuery(Query):
    format: Literal["json", "csv"] = "json"


class ImportQuery(Query):
    """Without a name the study keeps its own."""

    name: NewName | None = None


class ImportReply(Reply):
    """The new study; `n_waiting` of its trials are to be tried, others had to stay behind."""

    study: StudyReply
    n_trials: int
    n_waiting: int
    n_left_out: int

    @classmethod
    def of(cls, imported: Imported) -> ImportReply:
        return cls.taken_from(imported, study=StudyReply.of(imported.study))


def read_study(body: bytes, name: str | None) -> tuple[StudyCopy, Iterator[TrialCopy]]:
    """A study, under another name if one is given, and its trials. Both raise InvalidRequest."""
    found = study_text(body)
    study = found.head.study if name is None else {**found.head.study, "name": name}
    definition = definition_from(study, "study", draw_seed=lambda: 0)
    return found.head.to_copy(definition), found.trials()
