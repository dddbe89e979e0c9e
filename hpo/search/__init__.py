"""Names and options turned into Optuna's samplers and pruners; only the API process loads this."""

from hpo.search.checks import check_algorithms
from hpo.search.importances import Importances
from hpo.search.pruners import PRUNERS, make_pruner
from hpo.search.pruning import decide
from hpo.search.samplers import SAMPLERS, grid_cells, make_sampler
from hpo.search.sampling import Drawn, Sampled, SearchStudy, sample, suggest_one

__all__ = [
    "PRUNERS",
    "SAMPLERS",
    "Drawn",
    "Importances",
    "Sampled",
    "SearchStudy",
    "check_algorithms",
    "decide",
    "grid_cells",
    "make_pruner",
    "make_sampler",
    "sample",
    "suggest_one",
]
