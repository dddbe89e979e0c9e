"""Seeds: every random stream of a study is a function of the study's seed and the trial's number.

So no two workers draw the same points, and the order of trials or the number of workers does
not change a trial's result.
"""

from __future__ import annotations

import hashlib

MAX_SEED = 2**31 - 1


def derive_seed(*parts: int | str) -> int:
    """A seed from 0 to 2**31 - 1 that depends on every part and on nothing else."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") % (MAX_SEED + 1)


def trial_seed(study_seed: int, number: int) -> int:
    """The seed of a trial; every attempt of it uses the same one."""
    return derive_seed(study_seed, number)
