"""Numbers in JSON: non-finite ones travel as the strings "NaN", "Infinity" and "-Infinity"."""

from __future__ import annotations

import math
from typing import Any

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_number(number: float) -> float | str:
    """A number as strict JSON can carry it; finite floats keep every bit."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def decode_number(number: float | str) -> float:
    """Reads what `encode_number` wrote. Raises ValueError for any other string."""
    if isinstance(number, str):
        if number not in NON_FINITE:
            raise ValueError(f"must be a number or one of {', '.join(NON_FINITE)}, got {number!r}")
        return NON_FINITE[number]
    return float(number)


def strict(document: Any) -> Any:
    """A copy of a JSON document in which every float is one that strict JSON can carry."""
    if isinstance(document, float):
        return encode_number(document)
    if isinstance(document, dict):
        return {key: strict(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [strict(value) for value in document]
    return document
