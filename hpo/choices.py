"""Values of categorical parameters, and the labels under which Optuna's tables hold them.

Optuna stores null, booleans, numbers and strings. An array or an object is stored as a string:
`json:` and its JSON text. Objectives and replies get the value back, other Optuna programs see
the label.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias

Label: TypeAlias = bool | int | float | str | None
Choice: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None

PREFIX = "json:"


def to_label(value: Any) -> Label:
    """What Optuna stores of a value: the same for equal arrays and objects."""
    if not isinstance(value, list | dict | tuple):
        label: Label = value
        return label
    return PREFIX + json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def from_label(stored: Any) -> Any:
    """The value behind what Optuna stores."""
    if not (isinstance(stored, str) and stored.startswith(PREFIX)):
        return stored
    try:
        return json.loads(stored.removeprefix(PREFIX))
    except ValueError:  # another program's own string
        return stored


def plain_choice(value: Any) -> Choice:
    """The value with tuples as arrays. Raises ValueError for one that JSON does not know."""
    if isinstance(value, str) and value.startswith(PREFIX):
        raise ValueError(f"choices must not begin with {PREFIX!r}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"choices must be finite, got {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain_choice(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain_choice(item) for key, item in value.items()}
    raise ValueError(
        "choices must be strings, numbers, true, false, null, or arrays and objects of these, "
        f"got {value!r}; name it by a string and look it up in the objective"
    )
