"""Files that others may read: they appear whole, and on the disk, or not at all."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends well, what stands there becomes `path`."""
    # The suffix stays: some libraries add theirs where it is missing.
    aside = path.with_name(f".{uuid.uuid4().hex[:8]}.{path.name}")
    try:
        yield aside
        move_whole(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def move_whole(aside: Path, path: Path) -> None:
    """Moves a file in its folder; afterwards a power cut takes neither name nor content."""
    flush(aside)
    os.replace(aside, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Returns when a file's content, or a folder's names, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
