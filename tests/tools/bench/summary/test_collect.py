"""Benchmarks are measured once for the same machine, sources and options; what fails is named, and the others go on."""

from pathlib import Path

import msgspec
import pytest

from cutset.errors import UsageError
from cutset.tools.bench.peer_comparison import SECONDS, PeerComparison
from cutset.tools.bench.summary.benchmark import Benchmark, BenchmarkOptions
from cutset.tools.bench.summary.collect import BenchmarkResult, collect, make_folder
from cutset.tools.bench.summary.conditions import Conditions
from cutset.tools.bench.summary.measure_apart import Measured

HERE = Conditions("cpu", 2, 1 << 30, {"torch": "2"}, "0")
NOTHING = BenchmarkOptions()
ROW = PeerComparison("step", SECONDS, (1.0,), "torch", (2.0,))


def make_benchmark(name: str, *, needs: tuple[str, ...] = (), uses: tuple[str, ...] = ()) -> Benchmark:
    return Benchmark(name, f"cutset bench {name}", "Measures.", lambda options, tell: (ROW,), needs, uses)


class Bench:
    """Counts what is measured; the benchmarks in `broken` fail."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.measured, self.broken = folder, list[str](), set[str]()

    def measure(self, name: str, options: BenchmarkOptions) -> Measured:
        self.measured.append(name)
        return Measured(trouble="it broke") if name in self.broken else Measured((ROW,))

    def run(
        self, *benchmarks: Benchmark, options: BenchmarkOptions = NOTHING, conditions: Conditions = HERE
    ) -> list[BenchmarkResult]:
        self.measured.clear()
        return list(collect(benchmarks, options, conditions, self.folder, tell=lambda line: None, measure=self.measure))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_failure_is_a_result_and_is_measured_again(bench: Bench) -> None:
    one, two = make_benchmark("one"), make_benchmark("two")
    bench.broken = {"one"}
    first = bench.run(one, two)
    assert [(result.trouble, result.comparisons) for result in first] == [("it broke", ()), ("", (ROW,))]
    bench.broken = set()
    second = bench.run(one, two)
    assert bench.measured == ["one"]
    assert [result.comparisons for result in second] == [(ROW,), (ROW,)]
    assert second[1] == first[1]


def test_what_has_no_data_says_so(bench: Bench) -> None:
    (result,) = bench.run(make_benchmark("one", needs=("data",)))
    assert (result.trouble, bench.measured) == ("not measured without --data", [])
    (result,) = bench.run(make_benchmark("one", needs=("data",)), options=BenchmarkOptions(data="mnist:x"))
    assert result.comparisons == (ROW,)


def test_other_sources_or_options_are_measured_anew(bench: Bench) -> None:
    one = make_benchmark("one", uses=("pslite",))
    bench.run(one)
    bench.run(one, options=BenchmarkOptions(data="it uses none"))
    assert bench.measured == []
    bench.run(one, options=BenchmarkOptions(pslite="program"))
    assert bench.measured == ["one"]
    bench.run(one, options=BenchmarkOptions(pslite="program"), conditions=msgspec.structs.replace(HERE, sources="1"))
    assert bench.measured == ["one"]


def test_a_run_that_is_stopped_goes_on_where_it_was(bench: Bench) -> None:
    one, two = make_benchmark("one"), make_benchmark("two")
    results = collect((one, two), BenchmarkOptions(), HERE, bench.folder, tell=lambda line: None, measure=bench.measure)
    next(results)
    results.close()
    bench.run(one, two)
    assert bench.measured == ["two"]


def test_a_file_of_the_user_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("mine")
    with pytest.raises(UsageError, match="E232"):
        make_folder(tmp_path, [make_benchmark("one")])
    assert make_folder(tmp_path / "new", [make_benchmark("one")]).is_dir()
