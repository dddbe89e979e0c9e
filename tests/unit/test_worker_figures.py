"""How busy devices are: what this machine tells, and what no driver knows."""

from __future__ import annotations

from api.schemas.workers import DeviceBody
from hpo.worker.figures import device_figures


def test_a_processor_tells_its_share_and_its_memory_once() -> None:
    device_figures(["cpu"])  # the first look has nothing to compare with
    sum(range(200_000))
    (found,) = device_figures(["cpu", "cpu"])
    assert found["device"] == "cpu"
    assert 0 <= found["utilization"] <= 1
    assert 0 < found["memory_used_bytes"] < found["memory_total_bytes"]
    assert DeviceBody.model_validate(found).to_figures().utilization == found["utilization"]


def test_what_no_driver_knows_is_left_out() -> None:
    assert device_figures(["GPU-00000000-dead-beef-0000-000000000000", "7"]) == []
    assert [found["device"] for found in device_figures(["cpu", "7"])] == ["cpu"]
