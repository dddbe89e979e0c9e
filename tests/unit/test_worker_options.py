"""The worker's options check themselves, and its slots follow from them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpo.worker.devices import (
    Slot,
    core_count,
    find_gpu_uuids,
    find_slots,
    threads_per_child,
    visible_entries,
)
from hpo.worker.options import WorkerOptions

URL = "http://127.0.0.1:8080"
TWO_GPUS = ["GPU-a", "GPU-b"]


def slots(environ: dict[str, str] | None = None, gpus: Any = TWO_GPUS, **given: Any) -> list[str]:
    options = WorkerOptions(url=URL, **given)
    return [slot.device for slot in find_slots(options, environ or {}, find_gpus=lambda: gpus)]


@pytest.mark.parametrize(
    "given",
    [
        {"url": "localhost:8080"},
        {"slots": 0},
        {"slots_per_device": 0.0},
        {"code": Path("/nowhere/at/all")},
        {"allow": ()},
        {"isolation": "thread"},
        {"grace_seconds": -1.0},
        {"max_offline_seconds": -1.0},
    ],
)
def test_a_bad_option_is_named_with_its_value(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=f"^{name}: ") as caught:
        WorkerOptions(**{"url": URL, **given})
    assert str(value) in str(caught.value)


def test_local_settings_mean_what_they_would_in_a_study_document() -> None:
    settings = {"epochs": "3", "lr": "1e-3", "flag": "on", "data_dir": "/data", "sizes": "[1, 2]"}
    expected = {"epochs": 3, "lr": 0.001, "flag": "on", "data_dir": "/data", "sizes": [1, 2]}
    assert WorkerOptions(url=URL, settings=settings).local_settings == expected


def test_each_gpu_is_a_slot() -> None:
    assert slots() == ["GPU-a", "GPU-b"]


def test_slots_may_share_a_gpu() -> None:
    assert slots(slots_per_device=1.5) == ["GPU-a", "GPU-b", "GPU-a"]
    assert slots(slots_per_device=2, slots=3) == ["GPU-a", "GPU-b", "GPU-a"]
    assert slots(slots_per_device=0.1) == ["GPU-a"]


def test_without_gpus_the_cpu_is_used() -> None:
    assert slots(gpus=[]) == ["cpu"] * max(1, core_count() // 2)
    assert slots(devices="cpu", slots=3) == ["cpu"] * 3


def test_devices_are_counted_among_the_visible() -> None:
    assert slots(devices="1") == ["GPU-b"]
    assert slots({"CUDA_VISIBLE_DEVICES": "5,GPU-x"}) == ["5", "GPU-x"]
    assert slots({"CUDA_VISIBLE_DEVICES": "5,GPU-x"}, devices="0") == ["5"]
    assert slots({"CUDA_VISIBLE_DEVICES": ""}, slots=1) == ["cpu"]
    assert slots(devices="GPU-b") == ["GPU-b"]


@pytest.mark.parametrize(("devices", "gpus"), [("2", TWO_GPUS), ("0", []), ("tpu", TWO_GPUS)])
def test_a_device_that_is_not_there_is_named(devices: str, gpus: list[str]) -> None:
    with pytest.raises(ValueError, match=f"devices: there is no GPU '{devices}'"):
        slots(devices=devices, gpus=gpus)


def test_visible_devices_end_at_the_first_invalid_one() -> None:
    assert visible_entries("0, 1,-1,2") == ["0", "1"]
    assert visible_entries("-1") == []


def test_an_objective_hears_of_cuda_only() -> None:
    assert Slot(index=0, device="GPU-a").kind == "cuda"
    assert Slot(index=0).kind == "cpu"


def test_cores_are_shared_by_the_slots_unless_the_user_says_otherwise() -> None:
    assert threads_per_child(core_count(), {}) == 1
    assert threads_per_child(1, {}) == core_count()
    assert threads_per_child(1, {"OMP_NUM_THREADS": "7"}) == 7
    assert threads_per_child(core_count(), {"OMP_NUM_THREADS": "4,2"}) == 1


class NoDriver(Exception):
    pass


def nvml(**given: Any) -> SimpleNamespace:
    """A driver with one whole GPU and one that is split into two parts of four places."""

    def part_of(handle: int, index: int) -> str:
        if index not in (0, 2):
            raise NoDriver
        return f"part-{index}"

    def mig_mode(handle: int) -> list[int]:
        if handle == 0:
            raise NoDriver  # knows no MIG
        return [1, 1]

    functions = {
        "NVMLError": NoDriver,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 4,
        "nvmlDeviceGetMigDeviceHandleByIndex": part_of,
        "nvmlDeviceGetUUID": lambda handle: b"GPU-a" if handle == 0 else f"MIG-{handle}",
    }
    return SimpleNamespace(**{**functions, **given})


def test_gpus_and_their_parts_are_found_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert find_gpu_uuids() == ["GPU-a", "MIG-part-0", "MIG-part-2"]


def test_a_machine_without_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NoDriver

    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=fail))
    assert find_gpu_uuids() == []
