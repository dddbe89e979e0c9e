"""Search spaces in bodies: the shape is checked here, the ranges check themselves in hpo.space."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from api.schemas.base import (
    WHOLE,
    Body,
    Bool,
    Finite,
    JsonArray,
    JsonValue,
    Name,
    located,
)
from hpo.conditions import condition_faults
from hpo.space import (
    PARAMETER_TYPES,
    Categorical,
    FloatRange,
    IntRange,
    Parameter,
    Space,
    parameter_to_json,
)

# Optuna stores every parameter as a double, which holds whole numbers exactly up to here.
MAX_EXACT = 2**53
WholeNumber = Annotated[int, Field(strict=True, ge=-MAX_EXACT, le=MAX_EXACT), WHOLE]

# The sentences of hpo.space begin with the field that they are about.
SUBJECT = re.compile(r"(low|high|step|log|choices)\b")

WhenBody = Annotated[dict[Name, Annotated[JsonArray, Field(min_length=1)]], Field(max_length=100)]


class _ParameterBody(Body):
    """`effective_high` stands in replies; it may come back, so that a reply can be sent again.

    `when` names parameters and the values with which this one is drawn; without it, always.
    """

    when: WhenBody | None = None

    @property
    def conditions(self) -> dict[str, tuple[Any, ...]]:
        return {name: tuple(values) for name, values in (self.when or {}).items()}

    @abstractmethod
    def to_parameter(self) -> Parameter:
        """The parameter. Raises ValueError for a range that is not one."""

    @model_validator(mode="after")
    def _check(self) -> _ParameterBody:
        try:
            self.to_parameter()
        except ValueError as error:
            subject = SUBJECT.match(str(error))
            located(iter([((subject[0],) if subject else (), str(error))]))
        self._check_reach()
        return self

    def _check_reach(self) -> None:
        """Refuses an `effective_high` that is not the one of this range."""
        said, parameter = getattr(self, "effective_high", None), self.to_parameter()
        if said is None or isinstance(parameter, Categorical):
            return
        if said != parameter.effective_high:
            sentence = f"follows from low, high and step: {parameter.effective_high}, got {said}"
            located(iter([(("effective_high",), f"{sentence}; leave it out")]))


class FloatBody(_ParameterBody):
    """A real number from `low` to `high`, both included."""

    type: Literal["float"]
    low: Finite
    high: Finite
    log: Bool = False
    step: Finite | None = None
    effective_high: Finite | None = None

    def to_parameter(self) -> FloatRange:
        return FloatRange(
            low=self.low, high=self.high, log=self.log, step=self.step, when=self.conditions
        )


class IntBody(_ParameterBody):
    """A whole number from `low` to `high`, both included."""

    type: Literal["int"]
    low: WholeNumber
    high: WholeNumber
    log: Bool = False
    step: WholeNumber = 1
    effective_high: WholeNumber | None = None

    def to_parameter(self) -> IntRange:
        return IntRange(
            low=self.low, high=self.high, log=self.log, step=self.step, when=self.conditions
        )


class CategoricalBody(_ParameterBody):
    """One of `choices`, which have no order: any JSON values.

    Optuna's tables hold arrays and objects as strings that begin with `json:`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"type": "categorical", "choices": ["adam", "sgd"]}]}
    )

    type: Literal["categorical"]
    choices: JsonArray

    def to_parameter(self) -> Categorical:
        return Categorical(choices=tuple(self.choices), when=self.conditions)


class ConstantBody(_ParameterBody):
    """A fixed value that counts as a parameter; replies show it as a single choice."""

    type: Literal["constant"]
    value: JsonValue

    def to_parameter(self) -> Categorical:
        return Categorical(choices=(self.value,), when=self.conditions)


_BODIES: dict[str, type[_ParameterBody]] = {
    "float": FloatBody,
    "int": IntBody,
    "categorical": CategoricalBody,
    "constant": ConstantBody,
}
assert _BODIES.keys() == PARAMETER_TYPES.keys() | {"constant"}


def _by_type(value: Any, handler: ValidatorFunctionWrapHandler) -> _ParameterBody:
    """Picks the body by `type`, so that a fault's place does not repeat the type."""
    if isinstance(value, dict):
        type_name = value.get("type")
        if not isinstance(type_name, str) or type_name not in _BODIES:
            known = ", ".join(_BODIES)
            located(iter([(("type",), f"must be one of {known}, got {type_name!r}")]))
        else:
            return _BODIES[type_name].model_validate(value)
    located(iter([((), "must be an object with a type")]))
    raise AssertionError("unreachable: located raises")


ParameterBody = Annotated[
    Annotated[FloatBody | IntBody | CategoricalBody | ConstantBody, Field(discriminator="type")],
    WrapValidator(_by_type),
]


def _not_empty(space: dict[str, Any]) -> dict[str, Any]:
    if not space:
        raise ValueError("is empty; leave it out when the objective suggests")
    return space


def _with_conditions(space: dict[str, Any]) -> dict[str, Any]:
    located(condition_faults(to_space(space) or {}))
    return space


SpaceBody = Annotated[
    dict[Name, ParameterBody], AfterValidator(_not_empty), AfterValidator(_with_conditions)
]


def to_space(body: dict[str, Any] | None) -> dict[str, Parameter] | None:
    """The values behind a checked body."""
    return None if body is None else {name: item.to_parameter() for name, item in body.items()}


def space_reply(space: Space | None) -> dict[str, dict[str, Any]] | None:
    """The space as it stands in replies: with the value that a step really reaches."""
    if space is None:
        return None
    return {name: _parameter_reply(parameter) for name, parameter in space.items()}


def _parameter_reply(parameter: Parameter) -> dict[str, Any]:
    document = parameter_to_json(parameter)
    if not isinstance(parameter, Categorical) and parameter.step is not None:
        document["effective_high"] = parameter.effective_high
    return document
