"""The study document: every fault of it is found in one go, then it becomes a definition.

A field at fault is set aside and a stand-in takes its place, so that the other fields, the
objective's descriptor, the sampler and the pruner are still checked.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict

from api.errors import InvalidRequest
from api.faults import Fault, Faults, fault_of, top_of
from api.schemas.base import (
    MAX_INT,
    WHOLE,
    Body,
    Count,
    JsonObject,
    LimitSeconds,
    Name,
    Seconds,
    Text,
    json_document,
    spelled,
)
from api.schemas.space import SpaceBody, to_space
from hpo.errors import InvalidField
from hpo.objective import Descriptor
from hpo.seeds import MAX_SEED
from hpo.setting_rules import setting_faults
from hpo.study import (
    MAX_MODELS,
    MAX_NOTES,
    MAX_TAG,
    MAX_TAGS,
    STUDY_NAME,
    TRIAL_NAME,
    Algorithm,
    Budget,
    Direction,
    OnFault,
    StudyDefinition,
    ValueRule,
    check_objective_path,
)

# What takes the place of a required field that is at fault; other fields are left out.
STAND_INS: Mapping[str, Any] = {
    "name": "x",
    "objective": "x:x",
    "direction": "minimize",
    "directions": ["minimize"],
    "n_trials": 1,
    "space": {"x": {"type": "int", "low": 0, "high": 1}},
}

EXAMPLE: JsonDict = {
    "name": "digits",
    "objective": "objectives.digits:mlp",
    "direction": "maximize",
    "space": {
        "lr": {"type": "float", "low": 1e-4, "high": 0.1, "log": True},
        "n_layers": {"type": "int", "low": 1, "high": 4},
        "optimizer": {"type": "categorical", "choices": ["adam", "sgd"]},
    },
    "n_trials": 20,
    "sampler": "tpe",
    "pruner": {"name": "median", "n_startup_trials": 5},
    "settings": {"epochs": 20},
}


def study_name(name: str) -> str:
    if not STUDY_NAME.fullmatch(name):
        raise ValueError(
            "must be 1 to 200 letters, digits, dots, dashes or underscores, beginning with a "
            f"letter or digit, got {name[:60]!r}"
        )
    return name


def _objective_path(path: str) -> str:
    try:
        check_objective_path(path)
    except InvalidField as error:
        raise ValueError(error.message) from None
    return path


def _different(tags: list[str]) -> list[str]:
    twice = [tag for tag in tags if tags.count(tag) > 1]
    if twice:
        raise ValueError(f"must be different ones, got {twice[0]!r} twice")
    return tags


class AlgorithmBody(BaseModel):
    """A sampler or a pruner: its name, and Optuna's options beside it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    name: Name

    @model_validator(mode="after")
    def _check_options(self) -> AlgorithmBody:
        json_document(self.model_extra or {})
        return self

    def to_algorithm(self) -> Algorithm:
        return Algorithm(name=self.name, options=dict(self.model_extra or {}))


def _named(algorithm: Any) -> Any:
    return {"name": algorithm} if isinstance(algorithm, str) else algorithm


AlgorithmChoice = Annotated[
    AlgorithmBody, BeforeValidator(_named, json_schema_input_type=str | AlgorithmBody)
]
NewName = Annotated[str, AfterValidator(study_name), spelled(STUDY_NAME.pattern)]
Priority = Annotated[int, Field(strict=True, ge=-MAX_INT, le=MAX_INT), WHOLE]
Tag = Annotated[Name, Field(max_length=MAX_TAG)]
Tags = Annotated[
    list[Tag],
    Field(max_length=MAX_TAGS, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_different),
]
Notes = Annotated[Text, Field(max_length=MAX_NOTES)]
ObjectivePath = Annotated[
    str, Field(max_length=200), AfterValidator(_objective_path), spelled("[^:]+:[^:]+")
]


class StudyCreate(Body):
    """A study to create. What is left out, or null, comes from the objective's descriptor.

    Without an objective no worker runs its trials: programs ask for them and tell the values.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    name: NewName
    objective: ObjectivePath | None = None
    n_trials: Count
    direction: Direction | None = None
    directions: Annotated[list[Direction], Field(min_length=1, max_length=10)] | None = None
    space: SpaceBody | None = None
    max_parallel_trials: Count | None = None
    max_failed_trials: Count | None = None
    timeout_seconds: LimitSeconds | None = None
    trial_timeout_seconds: LimitSeconds | None = None
    no_progress_seconds: LimitSeconds | None = None
    sampler: AlgorithmChoice | None = None
    pruner: AlgorithmChoice | None = None
    settings: JsonObject | None = None
    seed: Annotated[int, Field(strict=True, ge=0, le=MAX_SEED), WHOLE] | None = None
    metric: Name | None = None
    metrics: Annotated[list[Name], Field(min_length=1, max_length=10)] | None = None
    max_steps: Count | None = None
    value_rule: ValueRule | None = None
    max_attempts: Count | None = None
    retry_backoff_seconds: Annotated[Seconds, Field(le=3600)] | None = None
    on_diverged: OnFault | None = None
    on_out_of_memory: OnFault | None = None
    keep_models: Annotated[int, Field(strict=True, ge=0, le=MAX_MODELS), WHOLE] | None = None
    replicates: Annotated[str, Field(pattern=f"^{TRIAL_NAME.pattern}$")] | None = None
    priority: Priority | None = None
    tags: Tags | None = None
    notes: Notes | None = None

    _faults: list[Fault] = PrivateAttr(default_factory=list)

    @model_validator(mode="wrap")
    @classmethod
    def _set_faults_aside(
        cls, document: Any, handler: ModelWrapValidatorHandler[StudyCreate]
    ) -> StudyCreate:
        try:
            return handler(document)
        except ValidationError as error:
            if not isinstance(document, dict):
                raise
            faults = [_with_spelling(fault_of(dict(fault))) for fault in error.errors()]
        body = handler(_with_stand_ins(document, faults))
        body._faults = faults
        return body

    @property
    def given(self) -> frozenset[str]:
        """The names of the fields that the request names."""
        return frozenset(n for n in self.model_fields_set if getattr(self, n) is not None)

    def to_definition(
        self, descriptor: Descriptor | None, *, draw_seed: Callable[[], int]
    ) -> StudyDefinition:
        """The definition. Raises InvalidRequest with every fault of the document."""
        from hpo.search import check_algorithms  # loads Optuna

        faults = Faults(self._faults)
        offer = descriptor or Descriptor()
        definition = StudyDefinition(
            name=self.name,
            objective=self.objective,
            **self._directions(offer, faults),
            budget=Budget(**{field.name: getattr(self, field.name) for field in fields(Budget)}),
            seed=draw_seed() if self.seed is None else self.seed,
            space=to_space(self.space) or offer.space,
            settings=self._settings(offer, faults),
            max_steps=self._max_steps(offer, faults),
            **self._named_choices(),
        )
        for fault in check_algorithms(definition):
            faults.add(fault.field, fault.message)
        if faults:
            raise InvalidRequest(faults)
        return definition

    def _directions(self, offer: Descriptor, faults: Faults) -> dict[str, Any]:
        """The fields of the definition that say what the values are called and how they count."""
        if self.directions is not None and len(self.directions) > 1:
            return self._several_directions(self.directions, offer, faults)
        if self.metrics is not None and len(self.metrics) != 1:
            faults.add("metrics", "must be one name, as there is one direction")
        only = self.metrics[0] if self.metrics else None
        return {
            "direction": self._direction(offer, faults),
            "metric": self.metric or only or offer.metric,
        }

    def _several_directions(
        self, directions: Sequence[Direction], offer: Descriptor, faults: Faults
    ) -> dict[str, Any]:
        n_directions, metrics = len(directions), tuple(self.metrics or ())
        found = {
            "direction": (self.direction, "is the only one; leave it out beside directions"),
            "metric": (self.metric, "is the only name; give metrics, one for each direction"),
            "directions": (offer.direction, f"{self.objective!r} says that it has one value"),
        }
        for field, (given, sentence) in found.items():
            if given is not None:
                faults.add(field, sentence)
        if metrics and len(metrics) != n_directions:
            faults.add("metrics", f"must be {n_directions} names, one for each direction")
            metrics = ()
        return {"direction": directions[0], "directions": tuple(directions), "metrics": metrics}

    def _direction(self, offer: Descriptor, faults: Faults) -> Direction:
        given = self.direction or (self.directions[0] if self.directions else None)
        if given is None and offer.direction is None:
            known = " or ".join(f'"{direction}"' for direction in Direction)
            faults.add(
                "direction",
                f"is required: {known}; {self._why_no_direction()}",
            )
        elif given and offer.direction and given is not offer.direction:
            faults.add(
                "direction",
                f'must be "{offer.direction}", as the objective says of itself, or left out',
            )
        return given or offer.direction or Direction.MINIMIZE

    def _why_no_direction(self) -> str:
        if self.objective is None:
            return (
                "there is no objective, so the study is for ask and tell; "
                "name one to have workers run its trials"
            )
        return (
            f"no worker has described {self.objective!r}, which could say it "
            "(is it spelt as in /v1/objectives, and has the worker started?)"
        )

    def _settings(self, offer: Descriptor, faults: Faults) -> dict[str, Any]:
        settings = self.settings or {}
        for name, message in setting_faults(settings, offer.settings, offer.setting_rules):
            faults.add(f"settings.{name}", message)
        return {**offer.settings, **settings}

    def _max_steps(self, offer: Descriptor, faults: Faults) -> int | None:
        """A step is an epoch for an objective whose limit is its own default of epochs."""
        settings = self.settings or {}
        if self.max_steps is not None or "epochs" not in settings:
            return self.max_steps or offer.max_steps
        epochs = settings["epochs"]
        if offer.max_steps is None or offer.max_steps != offer.settings.get("epochs"):
            return offer.max_steps
        if any(fault.field == "settings.epochs" for fault in faults):
            return None
        if type(epochs) is not int or not 1 <= epochs <= MAX_INT:
            faults.add("settings.epochs", f"must be a whole number of 1 or more, got {epochs!r}")
            return None
        return epochs

    def _named_choices(self) -> dict[str, Any]:
        """The fields that go over as they are; those left out keep the definition's defaults."""
        names = (
            "value_rule",
            "max_attempts",
            "retry_backoff_seconds",
            "on_diverged",
            "on_out_of_memory",
            "keep_models",
            "replicates",
            "priority",
            "notes",
        )
        choices = {name: getattr(self, name) for name in names}
        choices["tags"] = self.tags and tuple(self.tags)
        for kind in ("sampler", "pruner"):
            body: AlgorithmBody | None = getattr(self, kind)
            choices[kind] = body and body.to_algorithm()
        if choices["pruner"] is None and len(self.directions or ()) > 1:
            choices["pruner"] = Algorithm(name="none")  # pruners compare one value
        return {name: choice for name, choice in choices.items() if choice is not None}


def _with_stand_ins(document: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    at_fault = {top_of(fault.field) for fault in faults}
    sound = {name: value for name, value in document.items() if name not in at_fault}
    return sound | {name: STAND_INS[name] for name in at_fault & STAND_INS.keys()}


def _with_spelling(fault: Fault) -> Fault:
    """Names the field that an unknown one was probably meant to be."""
    if "." in fault.field or "not known here" not in fault.message:
        return fault
    near = difflib.get_close_matches(fault.field, StudyCreate.model_fields, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(StudyCreate.model_fields)}"
    return Fault(fault.field, f"is not known here; {hint}")
