"""What fell is measured once more, and named if it falls again; a benchmark that fails keeps what was kept of it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from cutset.tools.bench.peer_comparison import RATE, PeerComparison
from cutset.tools.bench.summary.benchmark import Benchmark, BenchmarkOptions
from cutset.tools.bench.summary.check import PROCESSES, check_ratios, keep_ratios
from cutset.tools.bench.summary.conditions import Conditions
from cutset.tools.bench.summary.kept_ratios import read_kept
from cutset.tools.bench.summary.measure_apart import Measured

HERE = Conditions("cpu", 2, 1 << 30, {}, "0")
BENCHMARKS = [Benchmark(name, "", "", lambda options, tell: (), kept=True) for name in ("one", "two")]


def make_measure(*speeds: float) -> Callable[[str, BenchmarkOptions], Measured]:
    """Return a measure by which each run of PROCESSES processes has the next of these speeds; 0: it fails."""
    left = [speed for speed in speeds for _ in range(PROCESSES)]

    def measure(name: str, options: BenchmarkOptions) -> Measured:
        assert options.short
        speed = left.pop(0)
        rows = (PeerComparison("copy", RATE, (speed, speed * 1.001), "memcpy", (1.0, 1.0)),)
        return Measured(rows) if speed else Measured(trouble="no root")

    return measure


def ignore(line: str) -> None:
    pass


def test_ratios_of_a_benchmark_replace_its_own_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    assert keep_ratios(path, BENCHMARKS, HERE, tell=ignore, measure=make_measure(1.0, 2.0)) == []
    assert keep_ratios(path, BENCHMARKS[1:], HERE, tell=ignore, measure=make_measure(3.0)) == []
    kept = read_kept(path).benchmarks
    assert kept["one"].ratios == {"one: copy, of memcpy": (1.0, 1.001) * PROCESSES}
    assert kept["two"].ratios["two: copy, of memcpy"][0] == 3.0


def test_a_benchmark_that_fails_is_named_and_keeps_its_ratios(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    keep_ratios(path, BENCHMARKS, HERE, tell=ignore, measure=make_measure(1.0, 2.0))
    before = read_kept(path)
    left = make_measure(0.0, 2.0)
    assert keep_ratios(path, BENCHMARKS[:1], HERE, tell=ignore, measure=left) == ["one: no root"]
    assert read_kept(path) == before


def test_what_fell_once_is_not_named_and_what_fell_twice_is(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    keep_ratios(path, BENCHMARKS, HERE, tell=ignore, measure=make_measure(1.0, 1.0))
    kept = read_kept(path)
    once = check_ratios(kept, BENCHMARKS, HERE, tell=ignore, measure=make_measure(0.5, 1.0, 1.0))
    assert [row.fell for row in once.rows] == [False, False]
    twice = check_ratios(kept, BENCHMARKS, HERE, tell=ignore, measure=make_measure(1.0, 0.5, 0.5))
    assert [(row.row, row.fell) for row in twice.rows] == [
        ("two: copy, of memcpy", True),
        ("one: copy, of memcpy", False),
    ]


def test_another_machine_and_a_benchmark_that_fails_are_notes(tmp_path: Path) -> None:
    path, there = tmp_path / "kept.json", msgspec.structs.replace(HERE, cores=64)
    keep_ratios(path, BENCHMARKS[:1], there, tell=ignore, measure=make_measure(1.0))
    table = check_ratios(read_kept(path), BENCHMARKS[:1], HERE, tell=ignore, measure=make_measure(0.0, 0.0))
    assert table.notes[:2] == ("one was kept on another machine: cpu, 64 cores.", "one: no root.")
    assert [row.fell for row in table.rows] == [True]


def test_where_nothing_is_kept_nothing_is_said_to_stand(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    keep_ratios(path, BENCHMARKS[:1], HERE, tell=ignore, measure=make_measure(1.0))
    table = check_ratios(read_kept(path), BENCHMARKS[1:], HERE, tell=ignore, measure=make_measure())
    assert table.notes == ("two has no kept ratios.", "Nothing was compared.")
    assert not table.rows
