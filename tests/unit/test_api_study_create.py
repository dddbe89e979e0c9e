"""The study document: every fault is named with its field, and all of them at once."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from api.errors import InvalidRequest
from api.schemas.study_create import EXAMPLE, StudyCreate
from hpo.objective import Descriptor
from hpo.setting_rules import rules_from_json, rules_to_json
from hpo.space import FloatRange, IntRange
from hpo.study import Algorithm, Direction, StudyDefinition, ValueRule

MINIMAL = {"name": "s", "objective": "m:f", "n_trials": 3, "direction": "minimize"}


def define(document: dict[str, Any], descriptor: Descriptor | None = None) -> StudyDefinition:
    body = StudyCreate.model_validate(document)
    return body.to_definition(descriptor, draw_seed=lambda: 11)


def faults(document: dict[str, Any], descriptor: Descriptor | None = None) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        define(document, descriptor)
    return {fault["field"]: fault["message"] for fault in caught.value.facts["errors"]}


def test_the_documented_example_is_a_definition() -> None:
    definition = define(dict(EXAMPLE))
    assert definition.direction is Direction.MAXIMIZE
    assert definition.space is not None
    assert definition.space["lr"] == FloatRange(low=1e-4, high=0.1, log=True)
    assert definition.sampler == Algorithm(name="tpe")
    assert definition.pruner == Algorithm(name="median", options={"n_startup_trials": 5})
    assert definition.seed == 11


def test_what_is_left_out_gets_the_defaults_of_a_definition() -> None:
    expected = StudyDefinition(
        name="s",
        objective="m:f",
        direction=Direction.MINIMIZE,
        budget=define(MINIMAL).budget,
        seed=11,
    )
    assert define(MINIMAL) == expected
    assert define({**MINIMAL, "space": None, "pruner": None, "value_rule": None}) == expected


def test_given_are_the_fields_that_the_request_names() -> None:
    body = StudyCreate.model_validate({**MINIMAL, "seed": 3, "metric": None})
    assert body.given == {"name", "objective", "n_trials", "direction", "seed"}


FLOAT = {"type": "float", "low": 0.0, "high": 1.0}
INT = {"type": "int", "low": 0, "high": 3}


@pytest.mark.parametrize(
    ("parameter", "field", "words"),
    [
        ({**FLOAT, "low": 2.0}, ".low", "must not be above high"),
        ({**FLOAT, "log": True}, ".low", "above 0 when log"),
        ({**FLOAT, "low": 0.1, "log": True, "step": 0.1}, ".log", "exclude each other"),
        ({**FLOAT, "step": 0}, ".step", "above 0"),
        ({**FLOAT, "high": math.inf}, ".high", "finite"),
        ({**FLOAT, "low": math.nan}, ".low", "finite"),
        ({**FLOAT, "high": 10**400}, ".high", "number"),
        ({**FLOAT, "low": "0"}, ".low", "must be a number"),
        ({**FLOAT, "low": True}, ".low", "must be a number"),
        ({**FLOAT, "lo": 1}, ".lo", "not known"),
        ({"type": "float", "low": 0}, ".high", "is required"),
        ({**INT, "low": 0.5}, ".low", "whole number"),
        ({**INT, "high": 2**60}, ".high", "9007199254740992 or less"),
        ({**INT, "step": 0}, ".step", "1 or more"),
        ({"type": "categorical", "choices": []}, ".choices", "must not be empty"),
        ({"type": "categorical", "choices": [1, 1.0]}, ".choices", "must differ"),
        ({"type": "categorical", "choices": [[1], [1.0]]}, ".choices", "must differ"),
        ({"type": "categorical", "choices": ["json:1"]}, ".choices", "must not begin with"),
        ({"type": "constant"}, ".value", "is required"),
        ({**INT, "when": {"y": [1]}}, ".when.y", "not in the space"),
        ({**INT, "when": {"y": []}}, ".when.y", "1 items or more"),
        ({**INT, "when": {"float": [0]}}, ".when.float", "depends on float itself"),
        ({"type": "categorical", "choices": ["\ud800"]}, ".choices.0", "Unicode"),
        ({"type": "normal", "low": 0, "high": 1}, ".type", "float, int, categorical"),
        ({"low": 0, "high": 1}, ".type", "float, int, categorical"),
        (5, "", "must be an object"),
    ],
)
def test_a_fault_of_a_parameter_names_its_field(parameter: Any, field: str, words: str) -> None:
    found = faults({**MINIMAL, "space": {"float": parameter}})
    assert list(found) == [f"space.float{field}"]
    assert words in found[f"space.float{field}"]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"name": "a b"}, "name", "letters, digits"),
        ({"name": ""}, "name", "letters, digits"),
        ({"name": "x" * 201}, "name", "1 to 200"),
        ({"objective": "m.f"}, "objective", 'must read "module:name"'),
        ({"n_trials": 0}, "n_trials", "1 or more"),
        ({"n_trials": "5"}, "n_trials", "whole number"),
        ({"n_trials": True}, "n_trials", "whole number"),
        ({"n_trials": 2.5}, "n_trials", "whole number"),
        ({"n_trials": 2**31}, "n_trials", "2147483647 or less"),
        ({"n_trials": None}, "n_trials", "whole number"),
        ({"max_parallel_trials": 0}, "max_parallel_trials", "1 or more"),
        ({"timeout_seconds": 0}, "timeout_seconds", "above 0"),
        ({"trial_timeout_seconds": -1.5}, "trial_timeout_seconds", "above 0"),
        ({"no_progress_seconds": 1e10}, "no_progress_seconds", "or less"),
        ({"timeout_seconds": "60"}, "timeout_seconds", "must be a number"),
        ({"direction": "up"}, "direction", "minimize"),
        ({"direction": None}, "direction", "is required"),
        ({"space": {}}, "space", "is empty"),
        ({"space": []}, "space", "must be an object"),
        ({"space": {"": FLOAT}}, "space.", "1 characters or more"),
        ({"space": {"x" * 201: FLOAT}}, f"space.{'x' * 201}", "200 characters or fewer"),
        ({"space": {"a\nb": FLOAT}}, "space.a\nb", "printable"),
        ({"sampler": "tpo"}, "sampler", "tpe"),
        ({"sampler": {"n": 1}}, "sampler.name", "is required"),
        ({"sampler": {"name": "tpe", "n_startup": 1}}, "sampler.n_startup", "n_startup_trials"),
        ({"sampler": {"name": "tpe", "x": math.nan}}, "sampler.x", "finite"),
        ({"pruner": "medium"}, "pruner", "median"),
        ({"pruner": {"name": "median", "n_min_trials": 0}}, "pruner.n_min_trials", "1 or more"),
        ({"settings": {"a": {"b": [math.inf]}}}, "settings.a.b.0", "finite"),
        ({"settings": {"a": "\0"}}, "settings.a", "null character"),
        ({"settings": {"a\0": 1}}, "settings", "null character"),
        ({"settings": []}, "settings", "must be an object"),
        ({"seed": -1}, "seed", "0 or more"),
        ({"seed": 2**31}, "seed", "2147483647 or less"),
        ({"max_steps": 0}, "max_steps", "1 or more"),
        ({"value_rule": "mean"}, "value_rule", "'last' or 'best'"),
        ({"max_attempts": 0}, "max_attempts", "1 or more"),
        ({"retry_backoff_seconds": -1}, "retry_backoff_seconds", "0 or more"),
        ({"on_diverged": "retry"}, "on_diverged", "'prune' or 'fail'"),
        ({"priority": 1.5}, "priority", "whole number"),
        ({"prunner": "none"}, "prunner", 'did you mean "pruner"?'),
        ({"qqqqqq": 1}, "qqqqqq", "known: name, objective"),
        (
            {"max_steps": 5, "pruner": {"name": "median", "n_warmup_steps": 5}},
            "pruner.n_warmup_steps",
            "max_steps is 5",
        ),
    ],
)
def test_a_fault_names_its_field(change: dict[str, Any], field: str, words: str) -> None:
    found = faults({**MINIMAL, **change})
    assert list(found) == [field]
    assert words in found[field]


def test_every_fault_is_named_at_once() -> None:
    document = {
        "name": "a b",
        "n_trials": 0,
        "space": {"lr": {**FLOAT, "low": 2.0}, "n": {**INT, "low": "1"}, "ok": INT},
        "sampler": "nope",
        "pruner": {"name": "median", "n_startup_trials": -1},
        "settings": {"x": math.nan},
        "typo": 1,
    }
    assert set(faults(document)) == {
        "name",
        "n_trials",
        "direction",
        "space.lr.low",
        "space.n.low",
        "sampler",
        "pruner.n_startup_trials",
        "settings.x",
        "typo",
    }


def test_a_fault_is_not_blamed_on_the_stand_in_of_another() -> None:
    document = {**MINIMAL, "sampler": "grid", "space": {"lr": {**FLOAT, "low": 2.0}}}
    assert set(faults(document)) == {"space.lr.low"}


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValidationError, match="valid dictionary"):
        StudyCreate.model_validate([MINIMAL])


def test_settings_as_deep_as_python_allows_are_refused_without_a_crash() -> None:
    deep: dict[str, Any] = {}
    for _ in range(800):
        deep = {"a": deep}
    assert faults({**MINIMAL, "settings": deep}) == {
        "settings.a": "is nested deeper than 32 levels"
    }


OFFER = Descriptor(
    direction=Direction.MAXIMIZE,
    space={"n": IntRange(low=1, high=4)},
    metric="accuracy",
    max_steps=20,
    settings={"epochs": 20, "data_dir": "data"},
)
SHORT = {"name": "s", "objective": "m:f", "n_trials": 3}


def test_a_descriptor_fills_what_is_left_out() -> None:
    definition = define(SHORT, OFFER)
    assert definition.direction is Direction.MAXIMIZE
    assert definition.space == OFFER.space
    assert (definition.metric, definition.max_steps) == ("accuracy", 20)
    assert definition.settings == {"epochs": 20, "data_dir": "data"}
    assert definition.value_rule is ValueRule.LAST


def test_the_request_wins_over_the_descriptor() -> None:
    definition = define({**SHORT, "space": {"x": FLOAT}, "metric": "f1", "max_steps": 7}, OFFER)
    assert definition.space == {"x": FloatRange(low=0, high=1)}
    assert (definition.metric, definition.max_steps) == ("f1", 7)


def test_max_steps_follows_the_epochs_where_a_step_is_an_epoch() -> None:
    definition = define({**SHORT, "settings": {"epochs": 5}}, OFFER)
    assert definition.max_steps == 5
    assert definition.settings == {"epochs": 5, "data_dir": "data"}
    in_batches = Descriptor(direction=Direction.MINIMIZE, max_steps=100, settings={"epochs": 20})
    assert define({**SHORT, "settings": {"epochs": 5}}, in_batches).max_steps == 100


@pytest.mark.parametrize("epochs", [0, "5", 2.5, True, None, 2**31])
def test_epochs_that_are_no_count_are_refused(epochs: Any) -> None:
    assert (
        "whole number"
        in faults({**SHORT, "settings": {"epochs": epochs}}, OFFER)["settings.epochs"]
    )


def test_a_direction_against_the_descriptor_is_refused() -> None:
    found = faults({**SHORT, "direction": "minimize"}, OFFER)
    assert '"maximize"' in found["direction"]


def test_a_setting_that_the_objective_does_not_list_is_refused() -> None:
    found = faults({**SHORT, "settings": {"epocs": 5}}, OFFER)
    assert found == {"settings.epocs": "is no setting of this objective; did you mean epochs?"}
    found = faults({**SHORT, "settings": {"lr": 5}}, OFFER)
    assert found == {"settings.lr": "is no setting of this objective; known: epochs, data_dir"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp8"}, "must be one of auto, fp32, tf32, bf16, fp16, got 'fp8'"),
        ({"micro_batch": 0}, "must be a whole number of 1 or more or null, got 0"),
        ({"batch_size": 1.5}, "must be a whole number of 1 or more, got 1.5"),
        ({"ema_decay": 1.5}, "must be a number above 0 and below 1 or null, got 1.5"),
        ({"resident_share": 2}, "must be a number of 0 or more and of 1 or less, got 2"),
        ({"compile": "maybe"}, "must be true or false, got 'maybe'"),
        ({"epochs": [5]}, "must be a whole number of 1 or more, got [5]"),
        ({"clip_value": 1, "clip_norm": 2}, "excludes clip_norm; set one of the two to null"),
    ],
)
def test_a_setting_is_held_to_the_rule_that_its_objective_gave(
    settings: dict[str, Any], message: str
) -> None:
    options = pytest.importorskip("hpo.training.options")
    # As the service knows it: what a worker registered.
    rules = rules_from_json(json.loads(json.dumps(rules_to_json(options.RULES))))
    kit = Descriptor(settings=options.DEFAULTS, setting_rules=rules)
    found = faults({**MINIMAL, "settings": settings}, kit)
    name = next(iter(settings))
    assert message in found[f"settings.{name}"]


def test_sound_settings_of_the_kit_pass_also_as_text() -> None:
    options = pytest.importorskip("hpo.training.options")
    kit = Descriptor(settings=options.DEFAULTS, setting_rules=options.RULES)
    settings = {"batch_size": 64.0, "ema_decay": None, "clip_norm": "0.5", "compile": "true"}
    found = define({**MINIMAL, "settings": settings}, kit)
    assert {**found.settings} == {**options.DEFAULTS, **settings}


def test_any_setting_goes_where_the_objective_lists_none() -> None:
    offer = Descriptor(direction=Direction.MINIMIZE)
    assert define({**SHORT, "settings": {"a": [1]}}, offer).settings == {"a": [1]}
