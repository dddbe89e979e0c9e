"""hpo: a self-hosted hyperparameter optimization service for PyTorch.

This package is what clients, objectives and workers import; it loads neither torch nor Optuna,
neither FastAPI nor SQLAlchemy.
"""

from typing import TYPE_CHECKING

from hpo.errors import HpoError
from hpo.objective import Descriptor, Trial, TrialFailed, TrialPruned, TrialReleased, objective
from hpo.space import Categorical, FloatRange, IntRange
from hpo.study import Direction
from hpo.version import __version__

if TYPE_CHECKING:
    from hpo.client import Client
    from hpo.handle import Study

__all__ = [
    "Categorical",
    "Client",
    "Descriptor",
    "Direction",
    "FloatRange",
    "HpoError",
    "IntRange",
    "Study",
    "Trial",
    "TrialFailed",
    "TrialPruned",
    "TrialReleased",
    "__version__",
    "objective",
]

_LAZY = {"Client": "hpo.client", "Study": "hpo.handle"}

if not TYPE_CHECKING:  # so that a name that does not exist is an error there

    def __getattr__(name: str) -> object:
        """What speaks HTTP is loaded when it is asked for."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
