"""Text from files that are read as they come: which package is this function from?

The data are shards, text files in a folder that the setting `data_dir` names:

    labels.txt            one label a line
    train-*.tsv           one record a line: label, tabulator, text
    valid-*.tsv           the same, for validation

Without `data_dir` they are made from what every machine has, the sources of Python's standard
library: ten packages, each function or method a record. `python -m objectives.text FOLDER` writes
the same files to look at. They differ a little between versions of Python.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import torch
from torch import nn
from torch.nn import functional

from hpo import FloatRange, IntRange
from hpo.space import Space
from hpo.study import Direction
from hpo.training import Split, Stream, TrainingObjective, make_optimizer

PACKAGES = (
    *("asyncio", "concurrent", "email", "http", "importlib"),
    *("json", "logging", "multiprocessing", "unittest", "xml"),
)
N_TRAIN_SHARDS, N_VALID_SHARDS = 8, 2
WORD = re.compile(r"[a-z]+|[A-Z][a-z]*|\d+|[^\s\w]")  # camelCase and snake_case fall apart
N_BUCKETS = 8_192
PADDING = 0
MAX_WORDS = 200

Record = tuple[int, list[int]]


class BagOfWords(nn.Module):
    """The mean of the words' vectors, and one linear layer."""

    def __init__(self, width: int, n_classes: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(N_BUCKETS, width, mode="mean", padding_idx=PADDING)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, n_classes))

    def forward(self, words_BW: torch.Tensor) -> torch.Tensor:
        # B batch, W words, filled up with PADDING
        return self.classifier(self.words(words_BW))  # type: ignore[no-any-return]  # nn.Module


class StandardLibrary(TrainingObjective):
    """Tells from a function's words which package of the standard library it is from."""

    space: ClassVar[Space] = {
        "lr": FloatRange(low=1e-3, high=1e-1, log=True),
        "dropout": FloatRange(low=0.0, high=0.5),
        "width": IntRange(low=16, high=128, log=True),
    }
    direction = Direction.MAXIMIZE
    metric = "accuracy"
    settings: ClassVar[Mapping[str, Any]] = {
        "epochs": 5,
        "batch_size": 64,
        # Shards lie in the order of their making: without it a batch would hold one package.
        "buffer_size": 2_048,
        "data_dir": None,
    }

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        labels = read_labels(find_shards(params["data_dir"]))
        return BagOfWords(params["width"], len(labels), params["dropout"])

    def data(self, params: Mapping[str, Any]) -> Split:
        folder = find_shards(params["data_dir"])
        stream = functools.partial(
            Stream,
            read=functools.partial(read_shard, labels=read_labels(folder)),
            collate=collate,
            n_workers=int(params["loader_workers"]),
            prefetch_factor=params["prefetch_factor"],
            buffer_size=int(params["buffer_size"]),
        )
        # Sorted: which file comes when is for the seed to say, not for the file system.
        return Split(
            train=stream(sorted(folder.glob("train-*.tsv"))),
            valid=stream(sorted(folder.glob("valid-*.tsv"))),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"accuracy": output.argmax(dim=1) == target}

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return make_optimizer(torch.optim.Adam, parameters, lr=params["lr"])


stdlib = StandardLibrary()


def read_shard(path: Path, labels: Mapping[str, int]) -> Iterator[Record]:
    """The records of a file, one at a time. Raises ValueError that names the line at fault."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            label, tabulator, text = line.rstrip("\n").partition("\t")
            if not tabulator or label not in labels:
                raise ValueError(
                    f"{path} line {number}: must be a label of labels.txt, a tabulator and text, "
                    f"got {line[:60]!r}"
                )
            yield labels[label], words_of(text)


def words_of(text: str) -> list[int]:
    """Its words as numbers. A hash needs no vocabulary, and two words may share a number."""
    found = itertools.islice(WORD.finditer(text), MAX_WORDS)
    words = (match[0].lower().encode() for match in found)
    # Python's own hash differs from process to process.
    return [1 + zlib.crc32(word) % (N_BUCKETS - 1) for word in words] or [PADDING]


def collate(records: Sequence[Record]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch as one tensor, as wide as its longest text."""
    width = max(len(words) for _, words in records)
    padded = [words + [PADDING] * (width - len(words)) for _, words in records]
    return torch.tensor(padded), torch.tensor([label for label, _ in records])


def read_labels(folder: Path) -> dict[str, int]:
    """The number of each label."""
    lines = (folder / "labels.txt").read_text(encoding="utf-8").split()
    return {label: number for number, label in enumerate(lines)}


def find_shards(data_dir: str | None) -> Path:
    """The folder of the shards; those of the standard library are written once a machine.

    Raises FileNotFoundError that says what belongs there.
    """
    if data_dir is not None:
        folder = Path(data_dir)
        for pattern in ("labels.txt", "train-*.tsv", "valid-*.tsv"):
            if not any(folder.glob(pattern)):
                raise FileNotFoundError(f"no {pattern} in {folder}; see objectives/text.py")
        return folder
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hpo" / f"stdlib-{sys.version_info.major}.{sys.version_info.minor}"
    try:
        if not folder.is_dir():
            write_once(folder)
    except OSError as error:
        raise OSError(
            f"the shards cannot be written to {folder} ({error}); write them elsewhere, python -m "
            "objectives.text FOLDER, and name the folder by the setting data_dir"
        ) from None
    return folder


def write_once(folder: Path) -> None:
    """Writes the shards aside and moves them, so that no trial finds a part of them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as part:
        write_shards(Path(part) / "whole")
        try:
            (Path(part) / "whole").rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another trial was faster
                raise


def write_shards(folder: Path) -> None:
    """Writes the functions of the standard library as shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.txt").write_text("\n".join(PACKAGES) + "\n", encoding="utf-8")
    names = [f"train-{n}.tsv" for n in range(N_TRAIN_SHARDS)]
    names += [f"valid-{n}.tsv" for n in range(N_VALID_SHARDS)]
    files: list[TextIO] = [(folder / name).open("w", encoding="utf-8") for name in names]
    written: set[str] = set()
    for package in PACKAGES:
        for text in functions_of(Path(sysconfig.get_path("stdlib")) / package):
            if text not in written:  # a copy could stand in both parts
                written.add(text)
                # By its own hash, so a function is in the same part in every version.
                print(package, text, sep="\t", file=files[zlib.crc32(text.encode()) % len(files)])
    for file in files:
        file.close()


def functions_of(folder: Path) -> Iterator[str]:
    """The source of each function and method below a folder, in one line; tests left out."""
    for path in sorted(folder.rglob("*.py")):
        if "test" not in path.parts and "tests" not in path.parts:
            source = path.read_text(encoding="utf-8")
            lines = source.splitlines()
            for node in outermost(ast.parse(source).body):
                yield " ".join(" ".join(lines[node.lineno - 1 : node.end_lineno]).split())


def outermost(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Functions and methods, not those within them: their text would stand in both parts."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from outermost(node.body)


if __name__ == "__main__":
    write_shards(Path(sys.argv[1]))
