"""The warnings of Optuna, numpy and scipy that a service cannot act upon, and no others.

The filters are added once and stay: `warnings.catch_warnings` swaps the list of the whole process
and is not safe between the threads of an API.
"""

from __future__ import annotations

import re
import warnings

from optuna.exceptions import ExperimentalWarning

# (message, category): the choice of an experimental sampler is the user's and is documented;
# values that are not finite are expected, Optuna's formulas pass over them.
EXPECTED: tuple[tuple[str, type[Warning]], ...] = (
    ("", ExperimentalWarning),
    ("All-NaN (slice|axis) encountered", RuntimeWarning),
    ("The distribution is specified by .* not divisible by `step`", UserWarning),
    ("Separable CMA-ES does not operate meaningfully", UserWarning),
    ("Clip non-finite values", UserWarning),
    ("WilcoxonPruner finds steps", UserWarning),
    ("The intermediate values of the (current|best) trial", UserWarning),
    ("The best trial has no intermediate values", UserWarning),
    ("PedAnovaImportanceEvaluator computes the importances", UserWarning),
    ("Some regimes for parameter", UserWarning),
)
_FILTERS = tuple(
    ("ignore", re.compile(message, re.IGNORECASE) if message else None, category, None, 0)
    for message, category in EXPECTED
)


def quieten() -> None:
    """Silences the expected warnings; costs a look at a short list when they already are."""
    for (message, category), entry in zip(EXPECTED, _FILTERS, strict=True):
        if entry not in warnings.filters:
            warnings.filterwarnings("ignore", message=message, category=category)
