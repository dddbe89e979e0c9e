"""Which objectives a worker can serve: those with a descriptor in the modules it allows.

Runs in a child, for it imports user code.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from hpo.objective import Descriptor, descriptor_of, descriptor_to_json, is_allowed

BUILT_IN = "objectives"
IMPORT_SECONDS = 30


def find_objectives(
    allow: Sequence[str], code: str | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Descriptors as documents, and the modules that cannot be imported with the error."""
    found: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for name in sorted(candidate_modules(allow, code)):
        try:
            with time_limit(IMPORT_SECONDS):
                module = importlib.import_module(name)
            found += [
                {"objective": f"{name}:{attribute}", **descriptor_to_json(descriptor)}
                for attribute, descriptor in described_in(module)
            ]
        except BaseException as error:  # user code may even call sys.exit when it is imported
            skipped[name] = f"{type(error).__name__}: {error}"
    return found, skipped


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the main thread: a module that hangs must not keep the others."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"importing it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def candidate_modules(allow: Sequence[str], code: str | None) -> set[str]:
    """Names that the patterns allow: built in, in the code folder, or spelled out."""
    names = {pattern for pattern in allow if not set(pattern) & set("*?[")}
    spec = importlib.util.find_spec(BUILT_IN)
    if spec is None:
        names -= {BUILT_IN}
    else:
        names.add(BUILT_IN)
        names.update(walk(spec.submodule_search_locations or (), f"{BUILT_IN}."))
    if code is not None:
        names.update(walk([code]))
    return {name for name in names if is_allowed(name, allow) and not name.endswith("__main__")}


def walk(folders: Sequence[str], prefix: str = "") -> Iterator[str]:
    """Names of all modules below some folders; imports none of them."""
    for info in pkgutil.iter_modules(folders, prefix):
        yield info.name
        if info.ispkg:
            last = info.name.rpartition(".")[2]
            yield from walk([f"{folder}/{last}" for folder in folders], f"{info.name}.")


def described_in(module: ModuleType) -> Iterator[tuple[str, Descriptor]]:
    """Public objects with a descriptor that are defined in a module or listed in its `__all__`.

    A class whose instance stands there as well is the same objective under a second name.
    """
    found = dict(_public(module))
    kinds = {type(candidate) for candidate in found.values()}
    for attribute, candidate in found.items():
        descriptor = descriptor_of(candidate)
        if inspect.isabstract(candidate):
            continue
        if descriptor is not None and all(candidate is not kind for kind in kinds):
            yield attribute, descriptor


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    listed = set(getattr(module, "__all__", ()))
    for attribute, candidate in vars(module).items():
        is_own = getattr(candidate, "__module__", None) == module.__name__
        if attribute in listed or (is_own and not attribute.startswith("_")):
            yield attribute, candidate


def device_fault(kind: str) -> str | None:
    """Why CUDA does not work in a child; None when it does, or when nobody asks for it."""
    if kind != "cuda" or not importlib.util.find_spec("torch"):
        return None
    try:
        torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
        torch.zeros(1, device="cuda")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
