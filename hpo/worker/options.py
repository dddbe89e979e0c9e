"""What a worker is told at its start; the options check themselves and name the cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpo.documents import plain_value

DEFAULT_ALLOW = ("objectives", "objectives.*")
Isolation = Literal["forkserver", "spawn"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """How one worker process serves.

    `devices` is "auto", "cpu" or a list such as "0,1"; `slots_per_device` counts the trials that
    share a GPU, `slots` caps the total. `allow` holds fnmatch patterns for module names, `settings`
    node-local values in YAML that override those of a study, `commands` the file of programs that
    `objectives.command:run` may run; `tensorboard` is the folder for curves.
    """

    url: str
    token_file: Path | None = None
    slots: int | None = None
    devices: str = "auto"
    slots_per_device: float = 1.0
    code: Path | None = None
    allow: tuple[str, ...] = DEFAULT_ALLOW
    preload: tuple[str, ...] = ()
    commands: Path | None = None
    python: str | None = None
    isolation: Isolation = "forkserver"
    checkpoints: Path = Path("checkpoints")
    tensorboard: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    grace_seconds: float = 30.0
    max_offline_seconds: float = 3600.0

    def __post_init__(self) -> None:
        for option, is_fine, cure in (
            ("url", self.url.startswith(("http://", "https://")), "must begin with http://"),
            ("slots", self.slots is None or self.slots >= 1, "must be 1 or more"),
            ("slots_per_device", self.slots_per_device > 0, "must be above 0"),
            ("code", self.code is None or self.code.is_dir(), "must be a folder that exists"),
            ("allow", bool(self.allow), "must name a module or pattern, such as 'objectives.*'"),
            ("isolation", self.isolation in ("forkserver", "spawn"), "is forkserver or spawn"),
            ("grace_seconds", self.grace_seconds >= 0, "must be 0 or more"),
            ("max_offline_seconds", self.max_offline_seconds >= 0, "must be 0 or more"),
        ):
            if not is_fine:
                raise ValueError(f"{option}: {cure}, got {getattr(self, option)!r}")

    @property
    def local_settings(self) -> dict[str, Any]:
        """The node-local settings with the values that they would have in a study document."""
        return {key: plain_value(text) for key, text in self.settings.items()}

    @property
    def code_folder(self) -> str | None:
        """The user's code folder as an absolute path: children may work elsewhere."""
        return None if self.code is None else str(self.code.resolve())
