"""Skew: how far apart the versions of the slices of a fetch are; and the quantiles of staleness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.ps.slices.staleness import StalenessHistogram, VersionSkew, find_quantiles


@given(st.lists(st.lists(st.integers(0, 9), max_size=30), max_size=3))
def test_quantiles_are_those_of_all_pushes(workers: list[list[int]]) -> None:
    histograms, pushes = [StalenessHistogram() for _ in workers], [tau for taus in workers for tau in taus]
    for histogram, taus in zip(histograms, workers, strict=True):
        for tau in taus:
            histogram.add(tau)
    found = find_quantiles(histograms)
    if not pushes:
        assert found is None
        return
    assert found is not None
    assert found["mean"] == pytest.approx(np.mean(pushes))
    expected = {f"p{part}": np.percentile(pushes, part, method="inverted_cdf") for part in (50, 90)}
    assert {name: found[name] for name in ("p50", "p90", "max")} == {**expected, "max": max(pushes)}


def test_mean_and_max_of_all_fetches():
    skew = VersionSkew()
    assert skew.statistics() == {"fetches": 0, "mean": 0.0, "max": 0}
    for versions in ([3, 3], [7, 4, 5], [2]):
        skew.add(versions)
    assert skew.statistics() == {"fetches": 3, "mean": 1.0, "max": 3}
