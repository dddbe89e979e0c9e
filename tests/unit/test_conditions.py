"""Conditional parameters and values that Optuna's tables cannot hold as they are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.choices import from_label, plain_choice, to_label
from hpo.conditions import condition_faults, drawing_order, is_active
from hpo.objective import Descriptor
from hpo.space import (
    Categorical,
    FloatRange,
    IntRange,
    Parameter,
    Space,
    space_from_json,
    space_to_json,
)

KIND = Categorical(choices=("adam", "sgd"))

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text().filter(lambda text: not text.startswith("json:")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(json_values)
def test_a_value_comes_back_from_its_label(value: Any) -> None:
    label = to_label(plain_choice(value))
    assert label is None or isinstance(label, bool | int | float | str)
    assert from_label(label) == value


def test_equal_objects_have_the_same_label_and_tuples_become_arrays() -> None:
    assert to_label({"a": 1, "b": [2]}) == to_label({"b": [2], "a": 1}) == 'json:{"a": 1, "b": [2]}'
    assert Categorical(choices=((1, 2), "x")).choices == ([1, 2], "x")
    assert from_label("json: no JSON") == "json: no JSON"


@pytest.mark.parametrize("choice", [object(), {1: 2}, [math.nan], {"a": math.inf}, b"x", {1, 2}])
def test_a_choice_that_json_does_not_know_is_refused(choice: Any) -> None:
    with pytest.raises(ValueError, match="choices must be"):
        Categorical(choices=(choice,))


def test_parameters_are_drawn_after_those_they_depend_on() -> None:
    space: Space = {
        "nesterov": Categorical(choices=(True, False), when={"depth": (2,)}),
        "depth": IntRange(low=1, high=2, when={"kind": ("sgd",)}),
        "kind": KIND,
        "lr": FloatRange(low=0, high=1),
    }
    assert drawing_order(space) == ["kind", "depth", "nesterov", "lr"]
    assert not list(condition_faults(space))
    assert space_from_json(space_to_json(space)) == space
    assert not is_active(space["depth"], {"kind": "adam"})
    assert is_active(space["nesterov"], {"kind": "sgd", "depth": 2})
    assert not is_active(space["nesterov"], {"kind": "adam"})  # depth is absent as well


@pytest.mark.parametrize(
    ("when", "sentence"),
    [
        ({"other": (1,)}, "is not in the space"),
        ({"lr": (0.5,)}, "is a float"),
        ({"kind": ("rmsprop",)}, "can never be 'rmsprop'"),
        ({"n": (2,)}, "can never be 2"),
        ({"n": (True,)}, "can never be True"),
        ({"kind": ()}, "is empty"),
        ({"x": (1,)}, "depends on x itself"),
        ({"loop": (1,)}, "depends on x itself"),
    ],
)
def test_a_condition_that_can_never_hold_is_refused(when: Any, sentence: str) -> None:
    x: Parameter = IntRange(low=0, high=1, when=when)
    space: Space = {
        "x": x,
        "kind": KIND,
        "n": IntRange(low=1, high=5, step=2),
        "lr": FloatRange(low=0, high=1),
        "loop": IntRange(low=0, high=1, when={"x": (1,)}),
    }
    faults = dict(condition_faults(space))
    assert sentence in faults["x", "when", next(iter(when))]
    with pytest.raises(ValueError, match=r"space\."):
        Descriptor(space=space)
