"""What the host says of its memory, and what a worker makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo.worker.host import (
    kernel_oom_kills,
    ran_out_of_memory,
    shared_memory_bytes,
    shared_memory_warning,
)


def test_small_shared_memory_is_told_with_its_cure() -> None:
    warning = shared_memory_warning(64 * 2**20)
    assert warning is not None
    assert "64 MiB" in warning
    assert "--shm-size" in warning


@pytest.mark.parametrize("n_bytes", [None, 2**30, 2**40])
def test_enough_shared_memory_is_not_worth_a_word(n_bytes: int | None) -> None:
    assert shared_memory_warning(n_bytes) is None


def test_shared_memory_is_measured_where_there_is_some(tmp_path: Path) -> None:
    assert (shared_memory_bytes(tmp_path) or 0) > 0
    assert shared_memory_bytes(tmp_path / "nowhere") is None


def test_the_kernel_counts_its_kills(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 12\noom_kill 3\noom_kill_other 9\n")
    assert kernel_oom_kills(counters) == 3
    counters.write_text("nr_free_pages 12\n")
    assert kernel_oom_kills(counters) is None
    assert kernel_oom_kills(tmp_path / "nowhere") is None


def test_only_a_count_that_grew_is_a_fact() -> None:
    assert ran_out_of_memory(3, 4)
    assert not ran_out_of_memory(3, 3)
    assert not ran_out_of_memory(None, 4)
    assert not ran_out_of_memory(3, None)
