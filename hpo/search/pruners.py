"""Pruners by name, with exactly Optuna's meaning and defaults.

A pruner is made afresh for each decision. Those that remember anything remember a constant, except
"auto" resources: Optuna freezes the estimate of the first decision in each process, so two of its
processes may disagree for ever; here every decision estimates from all complete trials.

A decision of wilcoxon takes up to 5 s of CPU where 7 to 13 steps have ties: scipy then tries all
permutations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    PatientPruner,
    PercentilePruner,
    SuccessiveHalvingPruner,
    ThresholdPruner,
    WilcoxonPruner,
)

from hpo.search.options import Option, integer, known, number
from hpo.search.quiet import quieten
from hpo.study import Algorithm, StudyDefinition

Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunerKind:
    """How a pruner is made from (study, options), and what it needs.

    `steps_needed` is the number of reports before which it cannot prune, and `waits_for` the
    option that sets it.
    """

    make: Callable[[StudyDefinition, Options], BasePruner]
    options: Mapping[str, Option]
    packages: tuple[str, ...] = ()
    waits_for: str = ""
    steps_needed: Callable[[Options], int] = lambda options: 1
    faults: Callable[[StudyDefinition, Options], Iterator[tuple[str, str]]] = (
        lambda definition, options: iter(())
    )


def algorithm_of(wrapped: str | Mapping[str, Any]) -> Algorithm:
    """Reads the pruner that a patient one wraps: a name, or a name with options beside it."""
    if isinstance(wrapped, str):
        return Algorithm(name=wrapped)
    options = dict(wrapped)
    return Algorithm(name=str(options.pop("name", "")), options=options)


def _warmup_steps(options: Options) -> int:
    return int(options.get("n_warmup_steps", 0)) + 1


def _first_rung_steps(options: Options) -> int:
    given = options.get("min_resource", "auto")
    resource = 1 if given == "auto" else given  # the least that "auto" becomes
    rate = options.get("min_early_stopping_rate", 0)
    return int(resource * options.get("reduction_factor", 4) ** rate) + 1


def _hyperband(definition: StudyDefinition, options: Options) -> BasePruner:
    return HyperbandPruner(**{"max_resource": definition.max_steps or "auto", **options})


def _hyperband_faults(definition: StudyDefinition, options: Options) -> Iterator[tuple[str, str]]:
    low, high = options.get("min_resource", 1), options.get("max_resource", definition.max_steps)
    if isinstance(high, int) and low > high:
        yield "min_resource", f"must not be above max_resource ({high}), got {low}"


def _patient(definition: StudyDefinition, options: Options) -> BasePruner:
    others = dict(options)
    wrapped = others.pop("wrapped", None)
    inner = None if wrapped is None else build_pruner(algorithm_of(wrapped), definition)
    return PatientPruner(inner, **others)


def _patient_faults(definition: StudyDefinition, options: Options) -> Iterator[tuple[str, str]]:
    wrapped = options.get("wrapped")
    if wrapped is None:
        return
    name = algorithm_of(wrapped).name
    if name in ("patient", "none"):
        yield "wrapped", f"cannot be {name!r}; leave it out to prune on patience alone"
    elif name not in PRUNERS:
        yield "wrapped", f"unknown {name!r}; {known(name, PRUNERS)}"


def _threshold_faults(definition: StudyDefinition, options: Options) -> Iterator[tuple[str, str]]:
    low, high = options.get("lower"), options.get("upper")
    if low is None and high is None:
        yield "lower", "or upper is required; give the value beyond which a trial is hopeless"
    elif low is not None and high is not None and low > high:
        yield "lower", f"must not be above upper ({high}), got {low}"


WARMUP = {"n_warmup_steps": integer(0), "interval_steps": integer(1)}
COMPARING = {"n_startup_trials": integer(0), **WARMUP, "n_min_trials": integer(1)}
BOUND = number(-math.inf, math.inf, None)
REDUCTION = integer(2, 1_000_000)

PRUNERS: dict[str, PrunerKind] = {
    "median": PrunerKind(
        make=lambda definition, options: MedianPruner(**options),
        options=COMPARING,
        waits_for="n_warmup_steps",
        steps_needed=_warmup_steps,
    ),
    "percentile": PrunerKind(
        make=lambda definition, options: PercentilePruner(**options),
        options={
            "percentile": Option(kind="a finite number", low=0, high=100, is_required=True),
            **COMPARING,
        },
        waits_for="n_warmup_steps",
        steps_needed=_warmup_steps,
    ),
    "successive_halving": PrunerKind(
        make=lambda definition, options: SuccessiveHalvingPruner(**options),
        options={
            "min_resource": integer(1, 10**9, "auto"),
            "reduction_factor": REDUCTION,
            "min_early_stopping_rate": integer(0, 64),
            "bootstrap_count": integer(0),
        },
        waits_for="min_resource",
        steps_needed=_first_rung_steps,
    ),
    "hyperband": PrunerKind(
        make=_hyperband,
        options={
            "min_resource": integer(1, 10**9),
            "max_resource": integer(1, 10**9, "auto"),
            "reduction_factor": REDUCTION,
            "bootstrap_count": integer(0),
        },
        waits_for="min_resource",
        steps_needed=lambda options: int(options.get("min_resource", 1)) + 1,
        faults=_hyperband_faults,
    ),
    "patient": PrunerKind(
        make=_patient,
        options={
            "patience": Option(kind="a whole number", low=0, is_required=True),
            "min_delta": number(0),
            "wrapped": Option(kind="a pruner", literals=(None,)),
        },
        waits_for="patience",
        steps_needed=lambda options: int(options["patience"]) + 2,
        faults=_patient_faults,
    ),
    "threshold": PrunerKind(
        make=lambda definition, options: ThresholdPruner(**options),
        options={
            "lower": number(-math.inf, math.inf, None),
            "upper": number(-math.inf, math.inf, None),
            **WARMUP,
        },
        waits_for="n_warmup_steps",
        steps_needed=_warmup_steps,
        faults=_threshold_faults,
    ),
    "wilcoxon": PrunerKind(
        make=lambda definition, options: WilcoxonPruner(**options),
        options={"p_threshold": number(0, 1), "n_startup_steps": integer(0)},
        packages=("scipy",),
        waits_for="n_startup_steps",
        steps_needed=lambda options: max(2, int(options.get("n_startup_steps", 2))),
    ),
    "none": PrunerKind(make=lambda definition, options: NopPruner(), options={}),
}


def build_pruner(algorithm: Algorithm, definition: StudyDefinition) -> BasePruner:
    """Makes the named pruner. Raises ValueError or TypeError for what only Optuna refuses."""
    return PRUNERS[algorithm.name].make(definition, algorithm.options)


def make_pruner(definition: StudyDefinition) -> BasePruner:
    """A fresh pruner of the study."""
    quieten()
    return build_pruner(definition.pruner, definition)
