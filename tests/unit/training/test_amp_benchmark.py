"""The comparison of precisions: its figures follow the work, its rows are whole and say TF32."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpo.errors import InvalidField
from hpo.training import bench_nets
from hpo.training.amp_benchmark import (
    BASE,
    BenchmarkOptions,
    Contestant,
    Entry,
    Heat,
    Kind,
    heats_of,
    kinds_of,
)
from hpo.training.amp_report import Spread, conclusion_of, document_of, row_of
from hpo.training.footprint import Footprint, footprint
from hpo.training.precision import Precision

CPU = torch.device("cpu")
BF16 = Kind(precision="bf16")
FIGURES = ("seconds_per_step", "steps_per_second", "speed_to_fp32", "held_bytes")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(heat: Heat) -> Heat:
    assert len(list(heat.run())) == heat.n_parts
    return heat


def tiny(*kinds: Kind, batch: int = 4, repeats: int = 2, **options: Any) -> Heat:
    made = BenchmarkOptions(n_steps=1, n_repeats=repeats, **options)
    return Heat(batch, kinds or (BASE, BF16), CPU, made, clock=time.thread_time)


def test_eight_times_the_work_takes_more_seconds_and_more_activations() -> None:
    small, large = (run(tiny(BASE, batch=batch, repeats=3)).entries[0] for batch in (8, 64))
    assert min(large.seconds) > 2 * min(small.seconds)
    assert small.footprint is not None
    assert large.footprint is not None
    # Not quite 8, for the loss keeps the sum of its weights, one number whatever the batch.
    ratio = large.footprint.activation_bytes / small.footprint.activation_bytes
    assert ratio == pytest.approx(8, rel=1e-5)
    assert large.footprint.held_bytes > small.footprint.held_bytes


def test_rows_are_whole_and_bf16_ran_in_half() -> None:
    heat = run(tiny())
    full, half = (row_of(heat, entry) for entry in heat.entries)
    assert all(row[figure] is not None for row in (full, half) for figure in FIGURES)
    assert (full["half_layers"], half["half_layers"], half["layers"]) == (0, 3, 3)
    assert full["tf32"] == half["tf32"] == {"matmul": False, "cudnn": False}
    assert half["activation_bytes"] < 0.75 * full["activation_bytes"]
    # Weights, gradients and moments stay as they were; half copies of the weights come on top.
    assert half["held_bytes"] == full["held_bytes"]
    n_matrix_weights = 32 * 3 * 9 + 64 * 32 * 9 + 4096 * 10
    assert (full["weight_copy_bytes"], half["weight_copy_bytes"]) == (0, 2 * n_matrix_weights)
    assert full["speed_to_fp32"] == {"low": 1.0, "median": 1.0, "high": 1.0}
    assert full["loss_first_and_last"][0] == pytest.approx(half["loss_first_and_last"][0], rel=0.02)
    assert full["loss_first_and_last"][1] < full["loss_first_and_last"][0]  # real steps


def test_the_bytes_of_a_net_that_can_be_counted_by_hand() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, target = torch.randn(32, 8), torch.randn(32, 4)

    def loss() -> torch.Tensor:
        return functional.mse_loss(model(inputs), target)

    loss().backward()
    optimizer.step()
    n_weights = 8 * 16 + 16 + 16 * 4 + 4
    assert footprint(model, optimizer, (inputs, target), loss) == Footprint(
        held_bytes=4 * (3 * n_weights + 32 * 8 + 32 * 4),  # weights, gradients, momentum, batch
        activation_bytes=4 * (32 * 16 + 32 * 4),  # the sigmoid's output, and the last one
        weight_copy_bytes=0,
    )


def test_each_turn_sets_the_flags_of_its_precision() -> None:
    seen: list[bool] = []
    contestants = [
        Contestant(kind, 4, CPU, BenchmarkOptions()) for kind in (Kind(precision="tf32"), BASE)
    ]
    for contestant in contestants:
        contestant.step = lambda: seen.append(torch.backends.cudnn.allow_tf32)  # type: ignore[method-assign,return-value,assignment]  # these alone
    for contestant in contestants:
        contestant.seconds_per_step(1, time.perf_counter)
    assert seen == [True, False]
    Precision("fp32", CPU)


def test_kinds_take_turns_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def note(self: Contestant, n_steps: int, clock: Any) -> float:
        order.append(self.precision.name)
        return 1.0

    monkeypatch.setattr(Contestant, "seconds_per_step", note)
    run(tiny(repeats=2))
    assert order == ["fp32", "bf16", "bf16", "fp32", "fp32", "bf16"]  # the first two choose steps


def test_a_kind_that_does_not_fit_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge(bench_nets.SimpleCNN):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return super().forward(inputs)  # type: ignore[no-any-return]  # nn.Module

    monkeypatch.setitem(bench_nets.NETS, "simple_cnn", Huge)  # type: ignore[arg-type]  # a dict
    heat = run(tiny())
    full, half = (row_of(heat, entry) for entry in heat.entries)
    assert (full["failure"], half["failure"]) == ("", "does not fit into memory")
    assert len(full["repeats"]) == 2
    assert half["repeats"] == []


def test_fp32_that_poses_as_half_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(bench_nets.SimpleCNN):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return super().forward(inputs)  # type: ignore[no-any-return]  # nn.Module

    monkeypatch.setitem(bench_nets.NETS, "simple_cnn", Stubborn)  # type: ignore[arg-type]  # a dict
    with pytest.raises(AssertionError, match="bf16: 0 half"):
        run(tiny())


@pytest.mark.parametrize(
    ("half_seconds", "words"), [(0.5, "AMP pays here at batch 4"), (0.97, "AMP does not pay here")]
)
def test_the_conclusion_says_whether_it_pays(half_seconds: float, words: str) -> None:
    heat = tiny()
    for entry, seconds in zip(heat.entries, (1.0, half_seconds), strict=True):
        entry.seconds = [seconds] * 3
    text = conclusion_of(heat)
    assert text is not None
    assert text.startswith(words)
    assert f"{1 / half_seconds:.2f} times the steps of fp32" in text
    assert conclusion_of(tiny()) is None
    for entry in heat.entries:
        entry.seconds = entry.seconds[:2]
    text = conclusion_of(heat)
    assert text is not None
    assert text.startswith("Rounds: 2, too few to say whether AMP pays")


def test_the_gain_agrees_with_the_medians_that_are_shown() -> None:
    heat = tiny()
    base, half = heat.entries
    base.seconds, half.seconds = [1.0, 4.0, 2.0], [2.0, 1.0, 1.0]
    assert row_of(heat, half)["speed_to_fp32"] == {"low": 1.25, "median": 2.0, "high": 3.0}
    half.seconds = [1.0, 2.0, 4.0]
    assert row_of(heat, half)["speed_to_fp32"]["median"] == 1.0


def test_spread_of_rounds() -> None:
    assert Spread.of([3.0]) == Spread(low=3, median=3, high=3)
    assert Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(low=2, median=3, high=4)


class TestChoices:
    def test_the_defaults_of_a_cpu(self) -> None:
        names = [kind.name for kind in kinds_of(BenchmarkOptions(), CPU)]
        assert names == ["fp32", "fp32 channels_last", "bf16", "bf16 channels_last"]
        assert [heat.batch_size for heat in heats_of(BenchmarkOptions(), CPU)] == [64, 256]

    def test_fp32_always_takes_part_and_fp16_must_be_allowed(self) -> None:
        options = BenchmarkOptions(precisions=("fp16",), allow_slow=True)
        assert {kind.precision for kind in kinds_of(options, CPU)} == {"fp32", "fp16"}
        with pytest.raises(InvalidField, match="precision: fp16 on a CPU"):
            kinds_of(BenchmarkOptions(precisions=("fp16",)), CPU)

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"model": "vgg"}, "model"),
            ({"batch_sizes": (1,)}, "batch"),
            ({"n_repeats": 0}, "repeats"),
            ({"n_steps": 0}, "steps"),
            ({"precisions": ("fp8",)}, "precision"),
            ({"precisions": ("tf32",)}, "precision"),
        ],
    )
    def test_a_wrong_choice_is_named(self, options: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidField) as caught:
            kinds_of(BenchmarkOptions(**options), CPU)
        assert caught.value.field == field


def test_resnet_halves_all_of_its_layers() -> None:
    (entry,) = tiny(BF16, model="resnet18", batch=2).entries
    contestant = Contestant(entry.kind, 2, CPU, BenchmarkOptions(model="resnet18"))
    assert contestant.count_half_layers() == (21, 21)
    assert sum(p.numel() for p in contestant.model.parameters()) == 11_173_962


def test_the_document_has_machine_versions_settings_and_raw_repeats() -> None:
    heat = run(tiny(repeats=2))
    document = document_of([heat], heat.options, CPU, is_complete=True)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document.keys() == {
        *("format", "complete", "machine", "versions", "settings", "rows", "conclusions")
    }
    assert document["machine"]["device"] == document["settings"]["device"] == "cpu"
    assert document["machine"]["threads"] == 1
    assert document["versions"]["torch"] == torch.__version__
    assert [len(row["repeats"]) for row in document["rows"]] == [2, 2]
    assert {row.keys() == document["rows"][0].keys() for row in document["rows"]} == {True}
    assert len(document["conclusions"]) == 1
    empty = document_of([tiny()], heat.options, CPU, is_complete=False)
    assert [row["seconds_per_step"] for row in empty["rows"]] == [None, None]
    assert isinstance(heat.entries[0], Entry)


class TestCommand:
    WORDS = ("amp-benchmark", "--device", "cpu", "--batch", "4", "--steps", "1", "--repeats", "2")

    @pytest.fixture
    def call(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., Any]:
        """Calls `hpo` with these words."""
        import hpo.cli

        def call(*words: str) -> tuple[Any, str, str]:
            monkeypatch.setattr("sys.argv", ["hpo", *words])
            with pytest.raises(SystemExit) as ended:
                hpo.cli.main()
            return (ended.value.code, *capsys.readouterr())

        return call

    def test_it_prints_a_table_or_the_figures(self, call: Callable[..., Any]) -> None:
        code, out, _ = call(*self.WORDS)
        assert code == 0
        assert "bf16 channels_last" in out
        assert "here at batch 4 for simple_cnn" in out
        code, out, _ = call(*self.WORDS, "--json")
        assert code == 0
        document = json.loads(out)
        assert document["complete"] is True
        assert len(document["rows"]) == 4

    @pytest.mark.parametrize("as_json", [False, True])
    def test_ctrl_c_shows_what_there_is(
        self, call: Callable[..., Any], as_json: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        numbers, real = count(), Contestant.seconds_per_step

        def interrupted(self: Contestant, n_steps: int, clock: Any) -> float:
            if next(numbers) == 9:  # four choose their steps, four have had one turn
                raise KeyboardInterrupt
            return real(self, n_steps, clock)

        monkeypatch.setattr(Contestant, "seconds_per_step", interrupted)
        code, out, err = call(*self.WORDS, *(["--json"] if as_json else []))
        assert code == 130
        assert "interrupted: the figures are of the rounds until then" in err
        if not as_json:
            assert "here at batch 4 for simple_cnn" in out
            return
        document = json.loads(out)
        assert document["complete"] is False
        assert [len(row["repeats"]) for row in document["rows"]] == [1, 1, 1, 1]

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--model", "vgg"], "model: must be simple_cnn or resnet18"),
            (["--batch", "1"], "batch: must be 2 or more"),
            (["--device", "tpu"], "device: must be auto, cpu, cuda"),
            (["--precision", "fp16"], "set allow_slow"),
        ],
    )
    def test_a_wrong_option_is_one_sentence(
        self, call: Callable[..., Any], words: list[str], sentence: str
    ) -> None:
        code, _, err = call(*self.WORDS[:3], *words)
        assert code == 2
        assert sentence in " ".join(err.replace("│", " ").split())
