"""The training kit: PyTorch under automatic mixed precision, checkpointed, to the bit.

`TrainingObjective` is the convenient way; `Precision`, `Checkpoints` and the rest serve a loop of
your own.
"""

# The first optimizer of a process loads it, which takes 1.7 s: once in the worker's fork server
# is better than once in every child.
import torch._dynamo  # noqa: F401  # for its side effect

from hpo.training.checkpoint import CheckpointMismatch, Checkpoints
from hpo.training.data import Loader, Resident, Split
from hpo.training.loop import Training, TrainingObjective
from hpo.training.precision import Precision, StepResult

__all__ = [
    "CheckpointMismatch",
    "Checkpoints",
    "Loader",
    "Precision",
    "Resident",
    "Split",
    "StepResult",
    "Training",
    "TrainingObjective",
]
