"""Guards the imports of `storage` and `api`: many projects have packages of these names too.

Whose package Python finds depends on PYTHONPATH and on what else is installed; serving a
stranger's module would end in a puzzle, so the command line looks first.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import hpo
from hpo.errors import HpoError

# A file that only our package of this name has.
ROOMS = {"storage": "store.py", "api": "app.py"}
# What a room needs beyond the base installation, and the extra that brings it.
NEEDS = {
    "optuna": "server",
    "sqlalchemy": "server",
    "alembic": "server",
    "fastapi": "server",
    "uvicorn": "server",
    "prometheus_client": "server",
}


class WrongRoom(HpoError):
    """Python finds another package of the same name."""

    code = "wrong_room"


class MissingExtra(HpoError):
    """A part of hpo is not installed here."""

    code = "missing_extra"


def require_rooms(*names: str, rooms: Mapping[str, str] = ROOMS) -> None:
    """Raises WrongRoom or MissingExtra unless these packages are the ones beside `hpo`."""
    for package, extra in NEEDS.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                f"{package} is not installed; this command needs the server's parts: "
                f"pip install 'hpo-service[{extra}]'"
            )
    for name in names:
        _require_room(name, rooms[name], Path(hpo.__file__).resolve().parents[1])


def require_driver(url: str) -> None:
    """Raises MissingExtra when the database needs a driver that is not installed."""
    if url.startswith("postgresql") and importlib.util.find_spec("psycopg") is None:
        raise MissingExtra("PostgreSQL needs its driver: pip install 'hpo-service[postgres]'")


def _require_room(name: str, file: str, home: Path) -> None:
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if any(Path(folder).resolve() == home / name for folder in folders):
        if (home / name / file).is_file():
            return
        raise WrongRoom(
            f"{home / name} is not the package {name!r} of hpo: another distribution has "
            "replaced it; install hpo-service in an environment of its own"
        )
    found = folders[0] if folders else spec.origin if spec else None
    raise WrongRoom(
        f"the package {name!r} that Python finds is {found}, not {home / name}, which belongs to "
        "hpo; take that folder out of PYTHONPATH, or install hpo-service in an environment of "
        "its own"
    )
