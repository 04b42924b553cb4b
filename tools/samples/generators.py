"""What samples draw at random: it depends on the seed and on what is read alone, and nobody else's draws change."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_generators(*what: int) -> int:
    """Seed the generators of Python, numpy and torch by some numbers; return the seed."""
    digest = hashlib.blake2b(" ".join(map(str, what)).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    return seed


@contextmanager
def keep_generators() -> Iterator[None]:
    """Leave the generators of Python, numpy and torch as they were."""
    python, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
