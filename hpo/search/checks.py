"""Whether a study's sampler and pruner can work: every fault at once, each with its field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hpo.errors import InvalidField
from hpo.search.options import known, option_faults, package_faults
from hpo.search.pruners import PRUNERS, PrunerKind, algorithm_of, build_pruner
from hpo.search.quiet import quieten
from hpo.search.samplers import SAMPLERS, SamplerKind, make_sampler
from hpo.study import Algorithm, StudyDefinition


def check_algorithms(definition: StudyDefinition) -> list[InvalidField]:
    """The faults of sampler and pruner; empty when every trial can be sampled and judged."""
    quieten()
    return [*_sampler_faults(definition), *_pruner_faults("pruner", definition.pruner, definition)]


def _sampler_faults(definition: StudyDefinition) -> list[InvalidField]:
    algorithm = definition.sampler
    faults = list(_named_faults("sampler", algorithm, SAMPLERS))
    if algorithm.name in SAMPLERS:
        faults += SAMPLERS[algorithm.name].space_faults(definition)
    return faults or list(_built("sampler", lambda: make_sampler(definition, 0)))


def _pruner_faults(
    field: str, algorithm: Algorithm, definition: StudyDefinition
) -> list[InvalidField]:
    faults = list(_named_faults(field, algorithm, PRUNERS))
    if definition.is_multi_objective and algorithm.name != "none":
        faults.append(InvalidField(field, "compares one value; choose none for several directions"))
    if faults:
        return faults
    kind = PRUNERS[algorithm.name]
    faults = [
        InvalidField(f"{field}.{option}", message)
        for option, message in kind.faults(definition, algorithm.options)
    ]
    faults += _idle_faults(field, algorithm, definition)
    wrapped = algorithm.options.get("wrapped")
    if wrapped is not None and not faults:
        faults += _pruner_faults(f"{field}.wrapped", algorithm_of(wrapped), definition)
    return faults or list(_built(field, lambda: build_pruner(algorithm, definition)))


def _named_faults(
    field: str, algorithm: Algorithm, kinds: Mapping[str, SamplerKind] | Mapping[str, PrunerKind]
) -> Iterator[InvalidField]:
    kind = kinds.get(algorithm.name)
    if kind is None:
        yield InvalidField(field, f"unknown {algorithm.name!r}; {known(algorithm.name, kinds)}")
        return
    yield from package_faults(field, algorithm.name, kind.packages)
    yield from option_faults(field, algorithm.options, kind.options)


def _idle_faults(
    field: str, algorithm: Algorithm, definition: StudyDefinition
) -> Iterator[InvalidField]:
    kind = PRUNERS[algorithm.name]
    steps = kind.steps_needed(algorithm.options)
    if definition.max_steps is not None and kind.waits_for and steps > definition.max_steps:
        yield InvalidField(
            f"{field}.{kind.waits_for}",
            f"no trial could ever be pruned: the first decision needs {steps} reports and "
            f"max_steps is {definition.max_steps}; lower it, or choose the pruner none",
        )


def _built(field: str, build: Callable[[], object]) -> Iterator[InvalidField]:
    try:
        build()
    except (ValueError, TypeError) as error:
        yield InvalidField(field, str(error))
