"""Where models lie: Optuna's own artifact store in a folder, into which files come whole.

optuna-dashboard and `optuna.artifacts` read the same folder, and may keep files of their own there.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from optuna.artifacts import FileSystemArtifactStore

from hpo.errors import InvalidField, ModelRefused
from hpo.files import move_whole
from storage.records import ModelOffer


class Artifacts(FileSystemArtifactStore):
    """A folder, made with the first file; processes that share a database share it, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def path(self, artifact_id: str) -> Path:
        """Where the file is, if it is there."""
        return self._folder / artifact_id

    def receive(self, artifact_id: str, offer: ModelOffer) -> Arrival:
        """Takes a file in, piece by piece. Raises ModelRefused when the folder does not let it."""
        with _storing():
            self._folder.mkdir(parents=True, exist_ok=True)
            return Arrival(self.path(artifact_id), self._aside(artifact_id), offer)

    def discard(self, artifact_id: str) -> None:
        """Removes the file, also one that has come half way. Raises OSError."""
        for path in (self.path(artifact_id), self._aside(artifact_id)):
            path.unlink(missing_ok=True)

    def _aside(self, artifact_id: str) -> Path:
        return self._folder / f".{artifact_id}.part"


class Arrival:
    """A model on its way into its file; it lies aside until all of it is there and as announced."""

    def __init__(self, path: Path, aside: Path, offer: ModelOffer) -> None:
        self.artifact_id, self._path, self._aside, self._offer = path.name, path, aside, offer
        self._digest, self._n_bytes = hashlib.sha256(), 0
        # "x": one request at a time takes in a file. Whoever comes again offers it again.
        self._file = aside.open("xb")

    def write(self, piece: bytes) -> None:
        """Takes the next piece. Raises InvalidField when there is more than was announced."""
        self._n_bytes += len(piece)
        if self._n_bytes > self._offer.size_bytes:
            raise InvalidField("size_bytes", f"{self._offer.size_bytes} were offered, more came")
        self._digest.update(piece)
        with _storing():
            self._file.write(piece)

    def move(self) -> None:
        """Gives the file its name. Raises InvalidField when it is not what was announced."""
        with _storing():
            self._file.close()
        if self._n_bytes != self._offer.size_bytes:
            message = f"{self._offer.size_bytes} were offered, {self._n_bytes} came"
            raise InvalidField("size_bytes", message)
        if self._digest.hexdigest() != self._offer.sha256:
            message = f"{self._offer.sha256} was offered, {self._digest.hexdigest()} came"
            raise InvalidField("sha256", message)
        with _storing():
            move_whole(self._aside, self._path)

    def close(self) -> None:
        """Ends the arrival; of what came half way nothing is left."""
        with contextlib.suppress(OSError):  # a full disk may refuse even the last bytes
            self._file.close()
        self._aside.unlink(missing_ok=True)


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """A disk that is full, or a folder that is not ours, costs the model and no more."""
    try:
        yield
    except OSError as error:
        raise ModelRefused(f"The model cannot be stored: {error}") from error
