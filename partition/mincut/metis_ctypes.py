"""METIS through ctypes, on the library inside pymetis' extension: pymetis itself passes only one balance constraint.

The widths of METIS' integers and reals were chosen when it was built, and are found here by trying it (METIS manual
5.1, sections 5.4 to 5.8). Nothing is checked: METIS prints or crashes on bad input, so metis.py sanitises it.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pymetis

from ..ir.box import Ints
from .csr_graph import CsrGraph, Floats, build_csr_graph

OPTIONS = 40  # METIS_NOPTIONS
SEED = 8  # METIS_OPTION_SEED
OK = 1  # METIS_OK
PROBED = 4096  # vertices of the graph by which the width of a real is found

CArray = npt.NDArray[Any]


class MetisUnavailable(Exception):  # noqa: N818 - a reason, not a failure
    """This build of pymetis hides METIS' own functions, or they do not behave as the manual says."""


@dataclass(frozen=True)
class MetisLibrary:
    """METIS' functions, and the types of its integers and reals."""

    recursive: Callable[..., int]
    kway: Callable[..., int]
    options: Callable[..., int]
    integer: type[np.int32 | np.int64]
    real: type[np.float32 | np.float64]

    def partition(
        self,
        graph: CsrGraph,
        weights: Ints,
        bytes: Ints,
        shares: Floats,
        *,
        tolerances: Floats,
        seed: int,
        kway: bool,
    ) -> Ints:
        """Partition into a part for each vertex, [n], by recursive bisection unless `kway`.

        weights: [n, constraints], the sum of each above zero; bytes: of the edges, [2e]; shares: [parts, constraints],
        the sum of each column one; tolerances: [constraints], where 1.01 allows a part one per cent more than its
        share. The sums of integers must be below 2^31. Raises MetisUnavailable where METIS gives up.
        """
        allowed = np.ascontiguousarray(tolerances, dtype=self.real)
        targets = np.ascontiguousarray(shares, dtype=self.real)
        return self._call(graph, weights, bytes, targets, parts=len(shares), allowed=allowed, seed=seed, kway=kway)

    def _call(
        self,
        graph: CsrGraph,
        weights: Ints,
        bytes: Ints,
        targets: CArray,
        *,
        parts: int,
        allowed: CArray | None,
        seed: int,
        kway: bool = False,
    ) -> Ints:
        options = np.zeros(OPTIONS, dtype=self.integer)
        self.options(_pointer(options))
        options[SEED] = seed % 2**31
        values = [np.array([n]) for n in weights.shape] + [graph.starts, graph.ends, weights]
        count, constraints, starts, ends, loads = (np.ascontiguousarray(a, dtype=self.integer) for a in values)
        joins, wanted = (np.ascontiguousarray(a, dtype=self.integer) for a in (bytes, np.array([parts])))
        cut, part_of = np.zeros(1, dtype=self.integer), np.zeros(len(weights), dtype=self.integer)
        no_sizes = None  # of vertices, which only the objective VOL needs
        arguments = (
            count,
            constraints,
            starts,
            ends,
            loads,
            no_sizes,
            joins,
            wanted,
            targets,
            allowed,
            options,
            cut,
            part_of,
        )
        status = (self.kway if kway else self.recursive)(*map(_pointer, arguments))
        if status != OK:
            raise MetisUnavailable(f"METIS ended with status {status} on a graph of {len(weights)} vertices")
        return part_of.astype(np.int64)


def _pointer(memory: CArray | None) -> ctypes.c_void_p | None:
    return None if memory is None else ctypes.c_void_p(memory.ctypes.data)


@cache
def load_metis() -> MetisLibrary:
    """Load the METIS inside pymetis. Raises MetisUnavailable."""
    try:
        library = ctypes.CDLL(pymetis._internal.__file__)
        recursive, kway = library.METIS_PartGraphRecursive, library.METIS_PartGraphKway
        options = library.METIS_SetDefaultOptions
    except (AttributeError, OSError) as error:
        raise MetisUnavailable(f"this pymetis hides METIS' own functions ({error})") from error
    integer = _integer_width(options)
    narrow = MetisLibrary(recursive, kway, options, integer, np.float32)
    return narrow if _is_narrow(narrow) else MetisLibrary(recursive, kway, options, integer, np.float64)


def _integer_width(options: Callable[..., int]) -> type[np.int32 | np.int64]:
    """The width of METIS' integers: the default options are all -1, so the bytes that it writes tell."""
    room = np.zeros(OPTIONS * 8, dtype=np.uint8)
    options(_pointer(room))
    bytes_written = int((room == 0xFF).sum())
    if bytes_written not in (OPTIONS * 4, OPTIONS * 8):
        raise MetisUnavailable(f"METIS' default options are not those of version 5 ({bytes_written} bytes)")
    return np.int64 if bytes_written == OPTIONS * 8 else np.int32


def _is_narrow(library: MetisLibrary) -> bool:
    """Whether METIS' reals have 32 bits.

    The trial's shares are valid in either width: 1/4 and 3/4 in 32 bits, about 1/2048 and the rest in 64.
    """
    shares = np.zeros(4, dtype=np.float32)
    shares[:2] = 0.25, 0.75
    wide = shares.view(np.float64)
    wide[1] = 1.0 - wide[0]
    line = build_csr_graph(np.ones(PROBED), np.arange(PROBED - 1), np.arange(1, PROBED), np.ones(PROBED - 1))
    ones = np.ones((PROBED, 1), dtype=np.int64)
    part_of = library._call(line, ones, np.ones_like(line.ends), shares, parts=2, allowed=None, seed=0)
    return int((part_of == 0).sum()) > PROBED // 16
