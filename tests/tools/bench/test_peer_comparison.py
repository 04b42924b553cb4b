"""A row beside its peer and its goal: ratios are of the same round where both have as many."""

import pytest

from cutset.tools.bench.peer_comparison import ACCURACY, RATE, SECONDS, Limit, PeerComparison, tabulate
from cutset.tools.units import NONE


def test_the_ratio_is_the_median_of_rounds_that_both_have() -> None:
    paired = PeerComparison("x", RATE, (1.0, 2.0, 9.0), "peer", (1.0, 4.0, 3.0))
    assert (paired.ratios, paired.ratio) == ((1.0, 0.5, 3.0), 1.0)
    other = PeerComparison("x", RATE, (1.0, 2.0, 9.0), "peer", (4.0, 4.0))
    assert (other.ratio, other.spread) == (0.5, 2.0)


def test_without_a_peer_there_is_no_ratio() -> None:
    row = PeerComparison("x", SECONDS, (1.0, 3.0))
    assert (row.ratio, row.peer_value, row.ratios) == (None, None, ())
    assert row.spread == pytest.approx(0.5)
    assert PeerComparison("x", SECONDS, (1.0,)).spread is None


@pytest.mark.parametrize(
    ("limit", "met"),
    [(Limit(least=2.0), True), (Limit(most=1.9), False), (Limit(most=4.0, of_ratio=False), True), (None, None)],
)
def test_a_limit_is_of_the_ratio_or_of_the_value(limit: Limit | None, met: bool | None) -> None:
    assert PeerComparison("x", SECONDS, (4.0,), "peer", (2.0,), limit).met is met


def test_a_row_is_printed_with_units_and_goal() -> None:
    rows = (
        PeerComparison("copy", RATE, (2e9, 2e9), "memcpy", (4e9, 4e9), Limit(least=0.9)),
        PeerComparison("start", SECONDS, (2.5,), limit=Limit(most=3.0, of_ratio=False)),
        PeerComparison("accuracy", ACCURACY, (0.973,), "one", (0.98,), Limit(0.5, 1.5)),
    )
    cells = tabulate(rows).format_cells()
    assert cells[0] == ["copy", "2.00 GB/s", "memcpy", "4.00 GB/s", "0.50", "± 0 %", "2", "at least 0.90", "no"]
    assert cells[1] == ["start", "2.5 s", "", NONE, NONE, NONE, "1", "at most 3 s", "yes"]
    assert cells[2][-2:] == ["at least 0.50, at most 1.50", "yes"]
    assert tabulate(rows, name="x").to_dict()["x"][0]["values"] == (2e9, 2e9)
