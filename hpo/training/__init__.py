"""The training kit: PyTorch under automatic mixed precision, checkpointed, to the bit.

`TrainingObjective` is the convenient way; `Precision`, `Checkpoints` and the rest serve a loop of
your own.
"""

# The first optimizer of a process loads it, which takes 1.7 s: once in the worker's fork server
# is better than once in every child.
import torch._dynamo  # noqa: F401  # for its side effect

from hpo.training.checkpoint import CheckpointMismatch, Checkpoints
from hpo.training.data import Split
from hpo.training.ema import Ema
from hpo.training.loader import Loader
from hpo.training.loop import Training, TrainingObjective
from hpo.training.optimizers import make_optimizer
from hpo.training.precision import Precision, StepResult
from hpo.training.resident import Resident
from hpo.training.stream import Stream

__all__ = [
    "CheckpointMismatch",
    "Checkpoints",
    "Ema",
    "Loader",
    "Precision",
    "Resident",
    "Split",
    "StepResult",
    "Stream",
    "Training",
    "TrainingObjective",
    "make_optimizer",
]
