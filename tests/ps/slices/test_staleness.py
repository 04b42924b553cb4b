"""Skew: how far apart the versions of the slices of a fetch are."""

from cutset.ps.slices.staleness import VersionSkew


def test_mean_and_max_of_all_fetches():
    skew = VersionSkew()
    assert skew.statistics() == {"fetches": 0, "mean": 0.0, "max": 0}
    for versions in ([3, 3], [7, 4, 5], [2]):
        skew.add(versions)
    assert skew.statistics() == {"fetches": 3, "mean": 1.0, "max": 3}
