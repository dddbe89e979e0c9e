"""What all bodies share: unknown fields and coerced types are refused, replies are strict JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic.config import JsonDict
from pydantic_core import InitErrorDetails, PydanticCustomError

from hpo.names import NAME, is_printable
from hpo.numbers import NON_FINITE, strict
from hpo.study import MAX_LIMIT_SECONDS

T = TypeVar("T")

MAX_DEPTH = 32
MAX_ATTRIBUTE_NAME = 512  # what Optuna's column holds
MAX_INT = 2**31 - 1  # what an INTEGER column holds on PostgreSQL
STORABLE = r"[^\x00]*"


class Body(BaseModel):
    """A request body."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class Reply(BaseModel):
    """A response body; non-finite numbers leave as strings, wherever they stand."""

    model_config: ClassVar[ConfigDict] = ConfigDict(ser_json_inf_nan="strings")

    @classmethod
    def taken_from(cls, record: object, **others: Any) -> Self:
        """Takes each field that is not among `others` from the record's attribute of that name."""
        names = cls.model_fields.keys() - others.keys()
        return cls(**{name: getattr(record, name) for name in names}, **others)


class Query(BaseModel):
    """The query of a URL; a misspelt parameter is refused rather than ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def spelled(pattern: str) -> Any:
    """Says in the OpenAPI document what a validator of ours checks, in a sentence of its own."""
    return Field(json_schema_extra=_pattern(pattern))


def _pattern(pattern: str) -> JsonDict:
    return {"pattern": f"^(?:{pattern})$"}


def located(faults: Iterator[tuple[tuple[str | int, ...], str]]) -> None:
    """Raises one ValidationError for all (place, sentence) pairs; returns when there are none."""
    errors = [
        # Braces would be read as a template, and the sentence may quote what a user sent.
        InitErrorDetails(
            type=PydanticCustomError("value", "{sentence}", {"sentence": sentence}),
            loc=place,
            input=None,
        )
        for place, sentence in faults
    ]
    if errors:
        raise ValidationError.from_exception_data("body", errors)


def storable(text: str) -> str:
    """Text as every database takes it: PostgreSQL refuses the null character."""
    if "\0" in text:
        raise ValueError("must not contain the null character")
    return text


def printable(text: str) -> str:
    """A name, as it stands in logs and on pages."""
    if text and not is_printable(text):
        raise ValueError(f"must have printable characters only, got {text!r}")
    return text


def cleaned(text: Any) -> Any:
    """Output of a child process: what UTF-8 or a database cannot carry is replaced."""
    if not isinstance(text, str):
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def json_document(document: T) -> T:
    """Free-form JSON, checked to the last leaf."""
    located(_faults(document, (), _must_be_finite))
    return document


def json_attributes(document: dict[str, Any]) -> dict[str, Any]:
    """Free-form JSON in which non-finite numbers are allowed; they become strings."""
    located(
        ((), f"has a name of more than {MAX_ATTRIBUTE_NAME} characters")
        for name in document
        if len(name) > MAX_ATTRIBUTE_NAME
    )
    located(_faults(document, (), lambda number: None))
    cleaned_up: dict[str, Any] = strict(document)
    return cleaned_up


def _must_be_finite(number: float) -> str | None:
    if math.isfinite(number):
        return None
    return 'must be finite; write the string "NaN", "Infinity" or "-Infinity" if it is meant'


def _faults(
    value: Any, place: tuple[str | int, ...], check_number: Callable[[float], str | None]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    sentence: str | None = None
    if len(place) > MAX_DEPTH:
        yield place[:1], f"is nested deeper than {MAX_DEPTH} levels"
    elif isinstance(value, dict):
        for key, item in value.items():
            if (sentence := _text_fault(key)) is not None:
                yield place, f"has a name that {sentence}"
            else:
                yield from _faults(item, (*place, key), check_number)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, (*place, index), check_number)
    else:
        if isinstance(value, str):
            sentence = _text_fault(value)
        elif isinstance(value, float):
            sentence = check_number(value)
        if sentence is not None:
            yield place, sentence


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "must not contain the null character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "must be valid Unicode, without lone surrogates"
    return None


def _decoded(number: Any) -> Any:
    return NON_FINITE.get(number, number) if isinstance(number, str) else number


def _whole(number: Any) -> Any:
    """To JSON 3.0 is the same whole number as 3, and some languages write it so."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


_NUMBER_SCHEMA = {"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]}

# Last of the parts of its type: what stands behind it is not told in the OpenAPI document.
WHOLE = BeforeValidator(_whole)
Int = Annotated[int, Field(strict=True), WHOLE]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_INT), WHOLE]
Index = Annotated[int, Field(strict=True, ge=0, le=MAX_INT), WHOLE]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
LimitSeconds = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=MAX_LIMIT_SECONDS)]
# Non-finite numbers travel as strings, in both directions.
Number = Annotated[
    float, BeforeValidator(_decoded), Field(strict=True), WithJsonSchema(_NUMBER_SCHEMA)
]
Bool = Annotated[bool, Field(strict=True)]
Text = Annotated[str, AfterValidator(storable), spelled(STORABLE)]
Output = Annotated[str, BeforeValidator(cleaned)]
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200),
    AfterValidator(printable),
    spelled(NAME.pattern),
]
JsonObject = Annotated[dict[str, Any], AfterValidator(json_document)]
JsonArray = Annotated[list[Any], AfterValidator(json_document)]
JsonValue = Annotated[Any, AfterValidator(json_document)]
JsonAttributes = Annotated[
    dict[str, Any],
    AfterValidator(json_attributes),
    Field(
        json_schema_extra={"propertyNames": {"maxLength": MAX_ATTRIBUTE_NAME, **_pattern(STORABLE)}}
    ),
]
