"""hpo: a self-hosted hyperparameter optimization service for PyTorch.

This package is what clients, objectives and workers import; it loads neither torch nor Optuna,
neither FastAPI nor SQLAlchemy.
"""

from hpo.errors import HpoError
from hpo.objective import Descriptor, Trial, TrialFailed, TrialPruned, TrialReleased, objective
from hpo.space import Categorical, FloatRange, IntRange
from hpo.version import __version__

__all__ = [
    "Categorical",
    "Descriptor",
    "FloatRange",
    "HpoError",
    "IntRange",
    "Trial",
    "TrialFailed",
    "TrialPruned",
    "TrialReleased",
    "__version__",
    "objective",
]
