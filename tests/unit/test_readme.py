"""The README and docs/ are true: commands parse, requests are answered, programs run.

Blocks that need a running service run in tests/acceptance/test_pages.py.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from fastapi.testclient import TestClient

import api
import hpo
import storage
from api.app import create_app
from api.errors import STATUSES
from hpo.cli import app
from hpo.cli.problems import CODES_OF_PYTHON
from hpo.documents import parse_document
from hpo.errors import HpoError
from hpo.objective import Trial, descriptor_of
from hpo.search import PRUNERS, SAMPLERS
from hpo.space import space_to_json
from hpo.version import PROTOCOL_VERSION, __version__
from hpo.worker.describe import find_objectives
from objectives.command import facts_of
from objectives.synthetic import quadratic
from storage.store import open_store
from tests.pages import (
    BLOCKS,
    FENCE,
    LANGUAGES,
    OWN_TESTS,
    PAGES,
    ROOT,
    block_of_file,
    block_with,
    text_of,
    write_files,
)

MARKDOWN = sorted({*ROOT.glob("*.md"), *PAGES})
REST, OBJECTIVES = text_of("docs/rest.md"), text_of("docs/objectives.md")
OPERATING = text_of("docs/operating.md")
# What belongs to the shell, to an engine, or to a database.
OTHERS = {"source", "docker", "echo", "pg_dump", "pg_restore"}
# Read by every client, so that no option shows it to those who list processes.
ENVIRONMENT_ONLY = {"HPO_TOKEN"}


class Line(NamedTuple):
    """A line of a bash block, in words."""

    page: Path
    words: list[str]


def command_lines() -> list[Line]:
    """The lines of every bash block."""
    return [
        Line(block.page, words)
        for block in BLOCKS
        if block.language == "bash"
        for line in block.text.splitlines()
        if (words := shlex.split(line, comments=True))
    ]


COMMAND_LINES = command_lines()
# What commands take that a study's name is not enough for.
WORDS = {
    "clone": ["digits", "digits-2"],
    "warm-start": ["digits-2", "digits"],
    "import": ["README.md"],
    "adopt": ["-f", "README.md"],
}


def lines_of(program: str) -> list[Any]:
    """The uses of one program on all pages, as test parameters with readable names."""
    found = [line.words for line in COMMAND_LINES if line.words[0] == program]
    assert found
    return [pytest.param(words, id=" ".join(words)[:60]) for words in found]


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES
    for block in BLOCKS:
        named = block.language in ("python", "yaml", "nginx")
        assert not named or block.file or block.has_own_test, block
    for text, test in OWN_TESTS.items():
        assert any(text in block.text for block in BLOCKS), text
        assert text in (ROOT / test).read_text(encoding="utf-8"), test


def test_every_program_on_a_page_is_looked_at_below() -> None:
    programs = {line.words[0] for line in COMMAND_LINES}
    assert programs - OTHERS == {"hpo", "curl", "make", "pip"}


@pytest.mark.parametrize("words", lines_of("hpo"))
def test_hpo_commands_parse(
    words: list[str],
    parse_command: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for page in PAGES:
        write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert parse_command(words) is not None


@pytest.mark.parametrize("words", lines_of("make"))
def test_make_targets_exist(words: list[str]) -> None:
    subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("words", lines_of("pip"))
def test_pip_lines_name_extras_and_files_that_exist(words: list[str]) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for word in words[2:]:
        for extra in re.findall(r"\[(.*)\]", word):
            assert all(re.search(rf"^{name} = \[", project, re.M) for name in extra.split(","))
        assert not word.endswith(".txt") or (ROOT / word).is_file()


class Request(NamedTuple):
    """A curl line as a request."""

    method: str
    path: str
    body: Any


def request_of(words: list[str]) -> Request:
    """Reads `curl -sf URL [--json BODY]`."""
    assert words[:2] == ["curl", "-sf"]
    url, *rest = words[2:]
    assert url.startswith("localhost:8080/")
    assert not rest or rest[0] == "--json"
    body = json.loads(rest[1]) if rest else None
    return Request("POST" if rest else "GET", url.removeprefix("localhost:8080"), body)


@pytest.fixture
def client(sqlite_url: str) -> Iterator[TestClient]:
    """The API with one worker that offers the built-in bowl."""
    descriptor = descriptor_of(quadratic)
    assert descriptor is not None
    assert descriptor.space is not None
    offer = {
        "objective": "objectives.synthetic:quadratic",
        "summary": descriptor.summary,
        "direction": descriptor.direction,
        "metric": descriptor.metric,
        "max_steps": descriptor.max_steps,
        "space": space_to_json(descriptor.space),
        "settings": dict(descriptor.settings),
    }
    worker = {
        "id": str(uuid.uuid4()),
        "name": "node:1",
        "version": __version__,
        "protocol": PROTOCOL_VERSION,
        "slots": 1,
        "devices": ["cpu"],
        "allow": ["objectives.*"],
        "objectives": [offer],
    }
    store = open_store(sqlite_url)
    store.prepare()
    with TestClient(create_app(store)) as found:
        assert found.post("/v1/workers", json=worker).status_code == 200
        yield found


def test_the_five_curl_lines_are_answered(client: TestClient) -> None:
    requests = [
        request_of(line.words)
        for line in COMMAND_LINES
        if line.words[0] == "curl" and line.page.name == "README.md"
    ]
    assert len(requests) == 5
    answers = [client.request(r.method, r.path, json=r.body) for r in requests]
    # No trial has completed here, so there is no best one yet.
    assert [answer.status_code for answer in answers] == [200, 201, 200, 200, 404]
    assert answers[-1].json()["code"] == "no_completed_trial"


def test_the_study_document_is_accepted_as_it_stands(client: TestClient) -> None:
    text = block_of_file("study.yaml")
    document = parse_document(text, source="study.yaml")
    answer = client.post("/v1/studies", json=document)
    assert answer.status_code == 201, answer.text
    shown = answer.json()
    for field in ("space", "settings", "sampler", "pruner", "seed", "metric", "max_attempts"):
        assert field in document
        assert (
            not (document[field].keys() - shown[field].keys())
            if isinstance(document[field], dict)
            else shown[field] == document[field]
        )


def test_the_study_of_a_script_is_accepted(client: TestClient) -> None:
    document = parse_document(block_of_file("script.yaml"), source="script.yaml")
    answer = client.post("/v1/studies", json=document)
    assert answer.status_code == 201, answer.text


def test_the_built_in_objectives_are_the_ones_that_exist() -> None:
    row = re.compile(r"^\| \[`(objectives\.\w+:\w+)`\]\(\.\./(\S+)\)", re.MULTILINE)
    listed = row.findall(OBJECTIVES)
    offered, skipped = find_objectives(("objectives.*",), None)
    assert skipped == {}
    assert {path for path, _ in listed} == {offer["objective"] for offer in offered}
    for path, link in listed:
        assert link == path.partition(":")[0].replace(".", "/") + ".py"


def test_changes_of_a_study_are_the_ones_that_exist(
    client: TestClient, parse_command: Callable[..., Any]
) -> None:
    rows = re.findall(r"^\| `(\w+) (/v1/\S+)` \| `([\w-]+)` \|", REST, flags=re.MULTILINE)
    paths = client.get("/openapi.json").json()["paths"]
    documented = {(method, path) for method, path, _ in rows}
    changing = {
        *((verb, "/v1/studies/{study}") for verb in ("PATCH", "DELETE")),
        ("GET", "/v1/studies/{study}/export"),
    } | {
        ("POST", path)
        for path, methods in paths.items()
        if re.fullmatch(r"/v1/studies/({study}/(?!ask)[\w-]+|import|adopt)", path)
        and "post" in methods
    }
    assert documented == changing
    for *_, word in rows:
        words = WORDS.get(word, ["digits"])
        assert parse_command(["hpo", "study", word, *words]) is not None


def test_what_is_done_with_trials_and_shown_of_studies_is_what_exists(
    client: TestClient, parse_command: Callable[..., Any]
) -> None:
    rows = re.findall(r"^\| (?:`([\w-]+)` )?\| `(\w+) (\S+)` \|", REST, flags=re.MULTILINE)
    study = "/v1/studies/{study}"
    paths = client.get("/openapi.json").json()["paths"]
    existing = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "analysis" in operation["tags"]
        or (method == "post" and "{number}" in path and "trials" in operation["tags"])
    }
    prefix = f"{study}/trials/{{number}}"
    assert {(method, path.replace("…", prefix)) for _, method, path in rows} == existing
    for word, _, path in rows:
        words = ["hpo", "study", word, "digits", *(["7"] if path.startswith("…") else [])]
        assert not word or parse_command(words) is not None


def test_samplers_and_pruners_are_the_ones_that_exist() -> None:
    paragraph = REST[REST.index("Samplers: ") : REST.index("Their options have")]
    samplers, pruners = paragraph.split("Pruners: ")
    assert re.findall(r"`(\w+)`", samplers) == list(SAMPLERS)
    assert re.findall(r"`(\w+)`", pruners) == list(PRUNERS)


class TestSettings:
    ROWS = re.findall(r"^\| `(HPO_\w+)` \| `(--[\w-]+)` \| (.*?) \|", OPERATING, re.MULTILINE)

    def test_the_table_is_what_the_command_line_reads(self) -> None:
        listed = {(variable, option) for variable, option, _ in self.ROWS}
        assert listed == {(variable, option) for variable, option, _ in envvars()}

    def test_each_variable_is_listed_with_its_commands(self) -> None:
        for variable, _, commands in self.ROWS:
            named = re.findall(r"`([\w ]+)`", commands)
            for _, _, command in filter(lambda row: row[0] == variable, envvars()):
                assert any(command.startswith(name) for name in named), (variable, command)

    def test_no_other_variable_is_read_anywhere(self) -> None:
        sources = [
            path.read_text(encoding="utf-8")
            for room in ("hpo", "storage", "api", "objectives")
            for path in (ROOT / room).rglob("*.py")
        ]
        read = {name for source in sources for name in re.findall(r"\bHPO_[A-Z_]*[A-Z]", source)}
        assert read == {variable for variable, _, _ in self.ROWS} | ENVIRONMENT_ONLY
        assert all(f"| `{variable}` | none |" in OPERATING for variable in ENVIRONMENT_ONLY)

    def test_programs_are_told_what_the_readme_says(self, tmp_path: Path) -> None:
        link: Any = None
        trial = Trial(link, study="script", number=0, checkpoint_dir=tmp_path)
        told = {f"HPO_{name.upper()}" for name in facts_of(trial)}
        _, _, section = OBJECTIVES.partition("## Existing scripts")
        rows = re.findall(r"^\| (`HPO_[^|]*) \|", section, flags=re.MULTILINE)
        assert told == {name for row in rows for name in re.findall(r"HPO_\w+", row)}


def envvars(group: Any = None, words: str = "") -> Iterator[tuple[str, str, str]]:
    """(variable, option, command) of every option that the environment may set."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        path = f"{words} {name}".strip()
        if hasattr(command, "commands"):
            yield from envvars(command, path)
            continue
        for option in () if command.hidden else command.params:
            if option.envvar:
                yield option.envvar, option.opts[0], path


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def anchors(path: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\((docs/[\w.-]+\.md)\)", text_of("README.md")))
    assert linked == {str(page.relative_to(ROOT)) for page in PAGES} - {"README.md"}


class TestPrograms:
    """The Python files: a function, an Optuna objective, a net; docs/tutorial.md checks its own.

    Those for other libraries need packages of their own, see tests/extras.
    """

    @pytest.mark.parametrize(
        ("module", "name"),
        [("my_models", "train"), ("my_optuna", "optuna_objective"), ("my_sine", "sine")],
    )
    def test_objectives_run(
        self, module: str, name: str, tmp_path: Path, hpo_command: Callable[..., Any]
    ) -> None:
        (tmp_path / f"{module}.py").write_text(block_of_file(f"{module}.py"), encoding="utf-8")
        words = ["objective", "check", f"{module}:{name}", "--code", str(tmp_path)]
        answer = hpo_command(*words)
        assert answer.code == 0, answer
        assert "step 1" in answer.out

    def test_an_existing_script_is_checked(
        self,
        tmp_path: Path,
        hpo_command: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        write_files(ROOT / "docs" / "objectives.md", tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HPO_COMMANDS", "my_scripts/commands.yaml")
        check = ["hpo", "objective", "check", "objectives.command:run"]
        (words,) = (line.words for line in COMMAND_LINES if line.words[:4] == check)
        answer = hpo_command(*words[1:])
        assert answer.code == 0, answer
        assert "step 1: 0.7" in answer.out

    def test_weights_are_loaded(self, tmp_path: Path) -> None:
        """As a trial of the block before leaves them."""
        (tmp_path / "my_sine.py").write_text(block_of_file("my_sine.py"), encoding="utf-8")
        train = (
            "from pathlib import Path\n"
            "from hpo import Trial\n"
            "from hpo.worker.check import DryLink\n"
            "from my_sine import sine\n"
            "link = DryLink(generator=None, given={'lr': 0.01, 'hidden': 8}, steps=9)\n"
            "sine(Trial(link, study='sine', number=3, checkpoint_dir=Path('attempt-1')))\n"
            "next(Path('attempt-1').glob('model.*')).rename('sine-3.pt')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", f"{train}\n{block_with('python', 'load_state_dict')}"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout.splitlines()[-1].startswith("sine 3 4 0.")

    def test_a_class_names_its_metric_and_conditions(self) -> None:
        found: dict[str, Any] = {}
        exec(block_of_file("my_classifier.py"), found)
        descriptor = found["Classifier"].descriptor
        assert (descriptor.metric, descriptor.direction) == ("accuracy", "maximize")
        assert descriptor.space["momentum"].when == {"optimizer": ("SGD",)}

    def test_plain_optuna_reads_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "hpo-data").mkdir()
        store = open_store(f"sqlite:///{tmp_path}/hpo-data/hpo.db")
        store.prepare()
        store.close()
        fill = (
            "import optuna\n"
            "study = optuna.create_study(study_name='digits', storage='sqlite:///hpo-data/hpo.db')\n"
            "study.optimize(lambda trial: trial.suggest_float('x', 2, 2), n_trials=1)\n"
        )
        code = f"{fill}\n{block_with('python', 'optuna.load_study')}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "{'x': 2.0} 2.0\n"


def test_the_table_of_requests_is_that_of_the_openapi_document(tmp_path: Path) -> None:
    row = re.compile(r"^\| `([A-Z]+ /[^`]+)` \| ([a-z ]+) \| (yes|no|with a key) \|", re.MULTILINE)
    _, _, section = REST.partition("## All requests")
    told = {request: (role, safe == "with a key") for request, role, safe in row.findall(section)}
    document = create_app(open_store(f"sqlite:///{tmp_path / 'hpo.db'}")).openapi()
    true = {
        f"{method.upper()} {path}": (
            " or ".join(operation.get("x-roles", [])) or "anybody",
            any(p["name"] == "Idempotency-Key" for p in operation.get("parameters", ())),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert told.keys() >= true.keys(), f"without a row: {sorted(true.keys() - told.keys())}"
    assert told.keys() <= true.keys(), f"there is no such: {sorted(told.keys() - true.keys())}"
    assert {request: told[request] for request in true} == true


ROOMS = ("hpo.", "storage.", "api.")
# What is imported only where the libraries are, and what begins to run when it is imported.
WITH_OTHER_LIBRARIES = ("hpo.training.integrations", "hpo.cli.__main__", "storage.migrations")


class TestCodes:
    """The table of error codes in docs/operating.md is that of the code, in both directions."""

    ROWS = re.findall(
        r"^\| `(\w+)` \| (\d*) ?\| \S", OPERATING.partition("by error code\n")[2], re.M
    )

    def test_each_status_is_the_one_sent(self) -> None:
        assert {code: int(status) for code, status in self.ROWS if status} == STATUSES

    def test_each_error_of_the_house_is_listed(self) -> None:
        for room in (hpo, storage, api):
            for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
                if not module.name.startswith(WITH_OTHER_LIBRARIES):
                    importlib.import_module(module.name)
        ours = {kind.code for kind in kinds_of(HpoError) if kind.__module__.startswith(ROOMS)}
        listed = {code for code, status in self.ROWS if not status}
        assert listed == (ours | set(CODES_OF_PYTHON.values())) - STATUSES.keys()


def kinds_of(error: type[HpoError]) -> set[type[HpoError]]:
    """An error and all that are a kind of it."""
    return {error}.union(*(kinds_of(kind) for kind in error.__subclasses__()))


def test_the_commands_of_the_guide_are_those_that_exist() -> None:
    rows = re.findall(r"^\| `hpo ([\w -]+)`((?:, `[\w-]+`)*) \|", text_of("docs/cli.md"), re.M)
    told = set()
    for first, others in rows:
        group = first.rpartition(" ")[0]
        words = [first, *(f"{group} {name}".strip() for name in re.findall(r"`([\w-]+)`", others))]
        told |= set(words)
    assert told == set(commands())


def commands(group: Any = None, words: str = "") -> Iterator[str]:
    """All commands but hidden ones."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        path = f"{words} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, path)
        elif not command.hidden:
            yield path


def test_the_readme_shows_the_objective_of_the_tutorial() -> None:
    assert block_of_file("my_project/my_spirals.py") == block_of_file("my_spirals.py")
