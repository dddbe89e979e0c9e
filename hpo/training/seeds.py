"""Random streams of one trial: initialisation, data order and dropout do not share one.

So a change of the model does not change the order of its data, and an evaluation in between
changes nothing at all.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hpo.seeds import derive_seed

# cuBLAS reads it once, when CUDA starts; without it its results vary.
CUBLAS_WORKSPACE = ":4096:8"


def seed_stream(seed: int | str, stream: str) -> None:
    """Seeds the generators of Python, numpy and torch for one part of a trial."""
    derived = derive_seed(seed, stream)
    random.seed(derived)
    np.random.seed(derived)
    torch.manual_seed(derived)


def epoch_order(n_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of the samples in an epoch: a function of these three, so nothing to save."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(n_samples, generator=generator)


def rng_state() -> dict[str, Any]:
    """The states of all global generators, as plain types and tensors."""
    (version, internal, gauss), numpy_state, torch_state, cuda_state = _raw_state()
    key = torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))
    state = {
        "python": [version, list(internal), gauss],
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": key}},
        "torch": torch_state,
    }
    return state if cuda_state is None else {**state, "cuda": cuda_state}


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restores what `rng_state` returned; a CUDA state is left out where there is no device."""
    version, internal, gauss = state["python"]
    inner = state["numpy"]["state"]
    key = inner["key"].numpy().astype(np.uint32)
    numpy_state = {**state["numpy"], "state": {**inner, "key": key}}
    cuda_state = state.get("cuda") if torch.cuda.is_available() else None
    _set_raw_state(((version, tuple(internal), gauss), numpy_state, state["torch"], cuda_state))


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Leaves all global generators as they were."""
    state = _raw_state()
    try:
        yield
    finally:
        _set_raw_state(state)


def _raw_state() -> tuple[Any, Any, torch.Tensor, torch.Tensor | None]:
    # Python, numpy, torch, CUDA, each in its own form: turning them is slower than reading them.
    cuda_state = torch.cuda.get_rng_state() if cuda_has_started() else None
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda_state


def _set_raw_state(state: tuple[Any, Any, torch.Tensor, torch.Tensor | None]) -> None:
    python_state, numpy_state, torch_state, cuda_state = state
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
    if cuda_state is not None:
        torch.cuda.set_rng_state(cuda_state)


def cuda_has_started() -> bool:
    """Whether this process has used CUDA; asking starts nothing."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch leaves it so


def make_deterministic() -> None:
    """Makes torch use deterministic algorithms only. Raises RuntimeError once CUDA has started."""
    if "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
        if cuda_has_started():
            raise RuntimeError(
                "CUDA has started without CUBLAS_WORKSPACE_CONFIG; set it to "
                f"{CUBLAS_WORKSPACE} in the environment for deterministic results"
            )
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
