"""Trials read from a database, with what samplers ask of each at every draw worked out once."""

from __future__ import annotations

from optuna.trial import FrozenTrial


class StoredTrial(FrozenTrial):
    """Equal to Optuna's own; what is worked out stands in slots, outside of what is compared.

    Nobody may change one that it did not make.
    """

    __slots__ = ("_internal_values", "_known_constraints")

    _internal_values: tuple[float, ...]
    _known_constraints: dict[str, float]

    @property
    def internal_values(self) -> tuple[float, ...]:
        """The parameters as distributions store them, in their order."""
        try:
            return self._internal_values
        except AttributeError:
            self._internal_values = tuple(
                distribution.to_internal_repr(self._params[name])
                for name, distribution in self._distributions.items()
            )
            return self._internal_values

    @property
    def constraints(self) -> dict[str, float]:
        if not self.state.is_finished():
            return super().constraints
        try:
            return self._known_constraints
        except AttributeError:
            self._known_constraints = super().constraints
            return self._known_constraints
