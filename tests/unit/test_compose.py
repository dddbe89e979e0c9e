"""The container files: valid by schema and lint, and consistent with the command line.

No engine is at hand to build the images, so everything that can be checked without one is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.pages import ROOT, text_of

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}

Parse = Callable[..., dict[str, Any]]


def stages() -> dict[str, str]:
    """The stages of the Dockerfile, with their instructions."""
    parts = re.split(r"^FROM .* AS ([\w-]+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def seconds(duration: str) -> float:
    """Reads "90s"."""
    assert duration.endswith("s")
    return float(duration[:-1])


def test_the_compose_file_fits_the_schema_of_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests/data/compose-spec.json").read_text(encoding="utf-8"))
    # Its $schema names 2019-09 by an address that is not the official one.
    validator = jsonschema.Draft201909Validator(schema)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    broken = COMPOSE | {"services": {"api": {"prots": ["8080:8080"]}}}
    assert not validator.is_valid(broken)


def test_the_dockerfile_is_lint_free() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", "--no-color", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_parts_are_all_there() -> None:
    assert set(SERVICES) == {"database", "migrate", "api", "worker"}
    assert SERVICES["database"]["image"] == "postgres:18"


@pytest.mark.parametrize("name", OURS)
def test_services_build_targets_that_exist(name: str) -> None:
    assert OURS[name]["build"]["target"] in stages()


@pytest.mark.parametrize("name", OURS)
def test_command_lines_parse(
    name: str, parse_command: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrypoint = re.search(r"^ENTRYPOINT (.*)$", stages()[OURS[name]["build"]["target"]], re.M)
    assert entrypoint is not None
    for variable, value in OURS[name]["environment"].items():
        monkeypatch.setenv(variable, value)
    options = parse_command([*json.loads(entrypoint[1]), *OURS[name]["command"]])
    if name == "api":
        assert not options["insecure"]
        assert options["db"].startswith("postgresql+psycopg://")
    if name == "worker":
        assert options["url"] == "http://api:8080"
        assert str(options["checkpoints"]) == "/checkpoints"


@pytest.mark.parametrize("name", OURS)
def test_environment_variables_are_ours(name: str) -> None:
    settings = text_of("docs/operating.md")
    for variable in OURS[name]["environment"]:
        assert f"`{variable}`" in settings


def test_tokens_come_from_the_environment_and_leave_this_machine_by_a_proxy_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:8080:8080"]
    assert SERVICES["worker"]["environment"]["HPO_TOKEN"] == "${HPO_TOKEN:-}"
    for service in OURS.values():
        assert not any("hpo_" in word for word in service["command"])


def test_parts_start_in_the_order_in_which_they_need_each_other() -> None:
    conditions = {
        (name, needed): how["condition"]
        for name, service in SERVICES.items()
        for needed, how in service.get("depends_on", {}).items()
    }
    assert conditions == {
        ("migrate", "database"): "service_healthy",
        ("api", "migrate"): "service_completed_successfully",
        ("worker", "api"): "service_healthy",
    }
    assert "healthcheck" in SERVICES["database"]
    assert "/readyz" in stages()["api"]
    assert SERVICES["migrate"]["restart"] == "no"


def test_the_worker_has_gpus_shared_memory_and_time_for_checkpoints(parse_command: Parse) -> None:
    worker = SERVICES["worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert worker["shm_size"] == "8gb"
    assert worker["stop_signal"] == "SIGTERM"
    grace = parse_command(["hpo", *worker["command"]])["grace_seconds"]
    assert grace + 10 <= seconds(worker["stop_grace_period"])


def test_data_outlives_the_containers() -> None:
    mounted = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    volumes = {volume.split(":")[0] for volume in mounted}
    assert volumes == set(COMPOSE["volumes"])
    # Since 18 the image keeps its data in a folder of the version below this one.
    assert "database:/var/lib/postgresql" in SERVICES["database"]["volumes"]


@pytest.mark.parametrize("target", ["api", "worker"])
def test_images_run_as_a_user_and_were_installed_by_the_constraints(target: str) -> None:
    found = stages()
    assert re.search(r"^USER 1000:1000$", found[target], flags=re.MULTILINE)
    assert "-c constraints.txt" in found[f"{target}-build"]
    assert f"COPY --from={target}-build /opt/hpo /opt/hpo" in found[target]


def test_the_build_context_holds_what_the_build_needs() -> None:
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert kept == {
        *("pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
        *("hpo", "storage", "api", "objectives"),
    }
    assert all((ROOT / name).exists() for name in kept)
