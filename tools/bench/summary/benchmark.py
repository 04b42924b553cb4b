"""`Benchmark`: what a command of `cutset bench` measures, as rows that stand beside their peers and limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ..peer_comparison import PeerComparison

Tell = Callable[[str], None]


class BenchmarkOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the user has for benchmarks: samples, a program that is built with ps-lite, published graphs.

    short: whether to measure only what is kept, in few rounds.
    """

    data: str | None = None
    pslite: str | None = None
    graphs: str | None = None
    short: bool = False

    def has(self, name: str) -> bool:
        """Return whether an option is given."""
        return getattr(self, name) is not None

    def choose_rounds(self, full: int, *, short: int = 3) -> int:
        """Return how many rounds to measure."""
        return short if self.short else full


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its name. command: that measures it alone; lead: what it measures, in a sentence.

    needs, uses: the options without which it cannot be measured, and those that add rows. kept: whether its ratios are
    kept and compared: it takes seconds, and its peers are measured in the same rounds.
    """

    name: str
    command: str
    lead: str
    measure: Callable[[BenchmarkOptions, Tell], Sequence[PeerComparison]]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    kept: bool = False
