"""Text that streams from shards: the files, what is read of them, and that it is learnt."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.worker.check import check_objective
from objectives import text
from objectives.text import PACKAGES, collate, find_shards, read_shard, stdlib, words_of

PARAMS = {"lr": 2e-2, "dropout": 0.1, "width": 64}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "shards"
    text.write_shards(folder)
    return folder


def records(folder: Path, part: str) -> collections.Counter[str]:
    """All lines of a part."""
    return collections.Counter(
        line
        for path in folder.glob(f"{part}-*.tsv")
        for line in path.read_text(encoding="utf-8").splitlines()
    )


def test_the_standard_library_is_split_without_overlap(shards: Path) -> None:
    train, valid = records(shards, "train"), records(shards, "valid")
    assert max((train + valid).values()) == 1
    assert {line.partition("\t")[0] for line in train} == set(PACKAGES)
    assert 0.1 < len(valid) / len(train) < 0.4


def test_packages_are_told_apart(kit: Any, shards: Path) -> None:
    valid = records(shards, "valid")
    shares = collections.Counter(line.partition("\t")[0] for line in valid.elements())
    trial, link = kit.trial(params=PARAMS, epochs=3, data_dir=str(shards))
    stdlib(trial)
    commonest = max(shares.values()) / valid.total()
    assert commonest < 0.4
    assert link.reports[-1].value >= 0.7


def test_it_passes_the_check(shards: Path) -> None:
    report = check_objective("objectives.text:stdlib", settings={"data_dir": str(shards)})
    assert (report.ending.end, report.warnings) == ("pruned", ()), report


@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_epoch_has_each_record_once(shards: Path, n_workers: int) -> None:
    params = {
        **stdlib.descriptor.settings,
        "data_dir": str(shards),
        "loader_workers": n_workers,
        "prefetch_factor": None,
    }
    source: Any = stdlib.data(params).valid
    batches = list(source.batches(64, torch.device("cpu")))
    assert sum(len(labels) for _, labels in batches) == records(shards, "valid").total()


def test_words_fall_apart_at_case_underscores_and_signs() -> None:
    assert words_of("getItem_byName(x2)") == words_of("get item by name ( x 2 )")
    assert words_of("") == [0]
    assert len(words_of("a " * 10_000)) == text.MAX_WORDS
    assert 0 < min(words_of("a b c ü 十")) <= max(words_of("a b c")) < text.N_BUCKETS


def test_a_batch_is_filled_up_and_its_padding_counts_for_nothing() -> None:
    words, labels = collate([(1, [5]), (0, [7, 8, 9])])
    assert (words.tolist(), labels.tolist()) == ([[5, 0, 0], [7, 8, 9]], [1, 0])
    net = text.BagOfWords(4, 2, 0.0)
    torch.testing.assert_close(net(words)[:1], net(torch.tensor([[5]])))


@pytest.mark.parametrize("line", ["unknown\tx", "json x", ""])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "train-0.tsv").write_text(f"json\tx\n{line}\n")
    with pytest.raises(ValueError, match=r"train-0.tsv line 2: must be a label"):
        list(read_shard(tmp_path / "train-0.tsv", {"json": 0}))


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no labels.txt in .*objectives/text.py"):
        find_shards(str(tmp_path))


def test_shards_are_made_once_a_machine(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def copy(folder: Path) -> None:
        made.append(folder)
        shutil.copytree(shards, folder)

    monkeypatch.setattr(text, "write_shards", copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_shards(None) == find_shards(None)
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "hpo").iterdir()] == [find_shards(None).name]


def test_a_cache_that_cannot_be_written_is_named_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"python -m objectives.text FOLDER.*data_dir"):
        find_shards(None)
