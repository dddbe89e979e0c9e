"""A direction may be written as a word, wherever an objective says it."""

from __future__ import annotations

from typing import Any

import pytest

from hpo.objective import Descriptor, descriptor_to_json
from hpo.study import Direction
from hpo.training import TrainingObjective


def test_a_training_may_say_its_direction_as_a_word() -> None:
    class Words(TrainingObjective):
        direction = "maximize"

        def model(self, params: Any) -> Any: ...
        def data(self, params: Any) -> Any: ...
        def loss(self, output: Any, target: Any) -> Any: ...
        def optimizer(self, parameters: Any, params: Any) -> Any: ...

    assert Words.descriptor.direction is Direction.MAXIMIZE
    assert descriptor_to_json(Words.descriptor)["direction"] == "maximize"


def test_another_word_is_refused_where_it_is_written() -> None:
    assert Descriptor(direction="minimize").direction is Direction.MINIMIZE  # type: ignore[arg-type]  # as users write it
    with pytest.raises(ValueError, match="upwards"):
        Descriptor(direction="upwards")  # type: ignore[arg-type]  # as users write it
