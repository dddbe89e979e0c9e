"""Study documents: YAML with the meaning of JSON, and nothing that it would mistake."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.cli.study_create import merged
from hpo.documents import InvalidDocument, parse_document, plain_value, read_document

NOTHING: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),  # a string in YAML 1.1
        ("1E+3", 1000.0),
        ("-2.5e-3", -0.0025),
        (".5", 0.5),
        ("20", 20),
        ("-3", -3),
        ("true", True),
        ("null", None),
        ("on", "on"),  # true in YAML 1.1
        ("no", "no"),
        ("1:30", "1:30"),  # 90 in YAML 1.1
        ("010", "010"),  # 8 in YAML 1.1
        ("1_000", "1_000"),
        ("2026-01-31", "2026-01-31"),  # a date in YAML 1.1
        ("'20'", "20"),
        ("", ""),
        ("adam", "adam"),
        ("[1, 2.0]", [1, 2.0]),
        (".inf", "Infinity"),
        (".nan", "NaN"),
        ("a: b: c", "a: b: c"),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    read = plain_value(text)
    assert (read, type(read)) == (value, type(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_that_python_writes_is_read_as_itself(number: float) -> None:
    read = plain_value(repr(number))
    assert type(read) is float
    assert read == number


def test_json_is_read_as_json() -> None:
    text = (
        '{"name": "a", "space": {"lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": true}}}'
    )
    assert parse_document(text, source="x") == {
        "name": "a",
        "space": {"lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True}},
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", r"study.yaml line 3: 'a' stands there twice"),
        ("space:\n  lr: {low: 1, low: 2}", r"line 2: 'low' stands there twice"),
        ("a: [", r"study.yaml line 1: "),
        ("a: !!python/name:os.system x", r"could not determine a constructor"),
        ("- 1\n- 2", r"must hold a study document"),
        ("", r"must hold a study document"),
        ("a: \x01", r"study.yaml: "),
    ],
)
def test_a_document_that_cannot_be_read_says_where(text: str, sentence: str) -> None:
    with pytest.raises(InvalidDocument, match=sentence):
        parse_document(text, source="study.yaml")


def test_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("name: piped"))
    assert read_document(Path("-")) == {"name": "piped"}


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidDocument, match=r"study\.yaml"):
        read_document(tmp_path / "study.yaml")


class TestMerged:
    def test_options_stand_above_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "study.yaml"
        file.write_text("name: first\nn_trials: 5\nsettings: {epochs: 3, data_dir: /a}\n")
        given = {"name": "second", "n_trials": None, "objective": None}
        assert merged(file, given, {"epochs": "50"}) == {
            "name": "second",
            "n_trials": 5,
            "settings": {"epochs": 50, "data_dir": "/a"},
        }

    def test_settings_of_a_file_may_be_null(self, tmp_path: Path) -> None:
        file = tmp_path / "study.yaml"
        file.write_text("name: first\nsettings:\n")
        assert merged(file, NOTHING, {"lr": "1e-3"})["settings"] == {"lr": 0.001}
