"""The bench of methods: what is compared takes the same samples, and the table and the goals say what was measured."""

import io
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from cutset.errors import UsageError
from cutset.ps.methods.registry import METHODS, parse_method
from cutset.ps.optimizers.registry import parse_optimizer
from cutset.tools.bench.commands.methods import methods_bench_command
from cutset.tools.bench.training.methods import (
    DDP_64,
    ONE,
    TORCH_HOGWILD,
    MethodResult,
    TrainingResult,
    make_contestants,
    measure,
)
from cutset.tools.bench.training.methods_table import compute_speedup, judge_goals, tabulate
from cutset.tools.bench.training.settings import SETTINGS, find_settings
from cutset.tools.output_file import TABLE_MARK

TRAIN, TEST = 1280, 200


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """MNIST's four files with made-up images, whose bright rows are their digit."""
    folder = tmp_path_factory.mktemp("mnist")
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        generator = torch.Generator().manual_seed(count)
        labels = torch.randint(10, (count,), generator=generator, dtype=torch.uint8)
        images = torch.randint(60, (count, 28, 28), generator=generator, dtype=torch.uint8)
        images[torch.arange(count), 2 * labels.long()] = 255
        write(folder / f"{name}-images-idx3-ubyte", images)
        write(folder / f"{name}-labels-idx1-ubyte", labels)
    return f"mnist:{folder}"


def write(path: Path, values: torch.Tensor) -> None:
    head = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    path.write_bytes(head + values.numpy().tobytes())


def test_every_method_has_a_row_that_can_be_asked_for() -> None:
    assert {setting.method.partition(":")[0] for setting in SETTINGS} == set(METHODS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        if not setting.optimizer:
            assert parse_method(setting.method).name == "sandblaster"
            continue
        made = parse_optimizer(setting.optimizer, setting.lr)
        parse_method(setting.method).check(made, 2, 1000)
        assert made.lr == setting.lr


def test_rows_are_named_by_themselves_or_by_their_method() -> None:
    assert find_settings([]) == SETTINGS
    assert [setting.name for setting in find_settings(["ssp", "lr / tau"])] == ["ssp", "lr / tau"]
    assert len(find_settings(["diloco"])) == 2
    with pytest.raises(UsageError, match="--methods gossip; there are downpour"):
        find_settings(["gossip"])


def measured(digits: str, folder: Path, *names: str) -> dict[str, MethodResult]:
    """Rows without rounds; all must have seen all samples, and learned."""
    entries = [e for e in make_contestants(digits, folder, SETTINGS) if e.name in names]
    said: list[str] = []
    rows = measure(entries, epochs=4, rounds=0, tell=said.append)
    assert [line.partition(":")[0] for line in said] == [entry.name for entry in entries] == [row.name for row in rows]
    for row in rows:
        assert row.learned.curve[-1][0] == 4 * TRAIN
        assert len(row.learned.curve) >= 8
        assert row.rates == (row.learned.samples_per_s,)
        assert row.learned.accuracy > 0.5
    return {row.name: row for row in rows}


@pytest.mark.slow
def test_ddp_with_half_batches_is_one_process(digits: str, tmp_path: Path) -> None:
    rows = measured(digits, tmp_path, ONE, DDP_64)
    one, two = ([accuracy for _, accuracy in rows[name].learned.curve] for name in (ONE, DDP_64))
    assert two == pytest.approx(one, abs=0.011)


@pytest.mark.slow
def test_torch_s_hogwild_takes_every_sample_once(digits: str, tmp_path: Path) -> None:
    assert measured(digits, tmp_path, TORCH_HOGWILD)[TORCH_HOGWILD].processes == 2


@pytest.mark.run
def test_ours_tells_staleness_and_bytes(digits: str, tmp_path: Path) -> None:
    row = measured(digits, tmp_path, "sync")["sync"]
    assert (row.learned.staleness_mean, row.ours, row.processes) == (0.0, True, 3)
    assert row.learned.bytes_per_step == pytest.approx(2 * 4 * 669_706, rel=0.1)


@pytest.mark.run
@pytest.mark.parametrize("name", ["sandblaster", "OWL-QN", "conjugate gradients"])
def test_batch_methods_take_passes_over_all_samples(digits: str, tmp_path: Path, name: str) -> None:
    setting = next(one for one in SETTINGS if one.name == name)
    short = replace(setting, method=setting.method.replace("iterations=60", "iterations=4"))
    (entry,) = (one for one in make_contestants(digits, tmp_path, [short]) if one.name == name)
    (measured,) = measure([entry], epochs=4, rounds=0, tell=print)
    assert measured.settings == short.method
    assert measured.learned.curve[-1][0] % TRAIN == 0
    assert measured.learned.accuracy > 0.2
    assert measured.learned.staleness_mean is None


def row(name: str, accuracy: float, *rates: float, ours: bool = True, at: int | None = 300) -> MethodResult:
    curve = ((100, 0.5), *(((at, 0.961),) if at else ()), (1000, accuracy))
    return MethodResult(
        name, f"{name}'s", "0.1, 0.2" if ours else "", 3, TrainingResult(curve, 1.0, 0.5, 2, 2048.0), rates, ours
    )


def rows_with(downpour: float, hogwild: float, worst: float) -> list[MethodResult]:
    return [
        row(ONE, 0.966, 100.0, 50.0, 200.0, ours=False),
        row(DDP_64, 0.965, 50.0, 50.0, 50.0, ours=False),
        row("downpour every 4", 0.964, *(rate * downpour for rate in (100.0, 50.0, 200.0))),
        row("hogwild", 0.967, *(rate * hogwild for rate in (100.0, 50.0, 200.0))),
        row("easgd", worst, 10.0, 10.0, 10.0, at=None),
    ]


def test_ratios_are_of_the_same_round() -> None:
    one, *_ = rows_with(1.4, 1.7, 0.96)
    assert compute_speedup(row("x", 0.9, 300.0, 50.0, 800.0), one) == 3.0
    assert compute_speedup(row("x", 0.9, 300.0), one) == 3.0


def test_goals_say_what_was_met() -> None:
    assert [goal.met for goal in judge_goals(rows_with(1.4, 1.7, 0.957))] == [True] * 4
    missed = judge_goals(rows_with(0.6, 1.5, 0.95))
    assert [goal.met for goal in missed] == [False] * 4
    assert str(missed[0]) == (
        "MISSED: the least accurate method (easgd) against one process, at least -1.00 points: -1.60 points"
    )
    assert str(missed[3]) == "MISSED: hogwild, samples/s of one process, at least 1.60 x: 1.50 x"
    assert [goal.goal for goal in judge_goals(rows_with(1.4, 1.7, 0.96)[:1])] == []


def test_tables_have_every_row_and_goal() -> None:
    out = io.StringIO()
    rows = rows_with(1.4, 1.7, 0.959)
    table = tabulate(rows)
    table.print(Console(file=out, width=250))
    text = table.to_markdown()
    for shown in (out.getvalue(), text):
        assert all(row.name in shown and row.settings in shown for row in rows)
        assert all(str(goal) in shown for goal in judge_goals(rows))
        assert "1000 samples each" in shown
        assert "easgd: 0.1, 0.2" in shown
    line = next(line for line in text.splitlines() if line.startswith("| hogwild"))
    assert [cell.strip() for cell in line.strip("|").split("|")][3:] == [
        "96.70 %", "1.76 s", "170", "1.70 x", "0.50 / 2", "2 KiB",
    ]  # fmt: skip
    assert next(line for line in text.splitlines() if line.startswith("| easgd")).split("|")[5].strip() == "not reached"


def test_the_command_measures_what_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def made(data: str, folder: Path, settings: object) -> str:
        asked.append((data, settings))
        return "entries"

    def rows_of(entries: str, *, epochs: int, rounds: int, tell: object) -> list[MethodResult]:
        asked.append((entries, epochs, rounds))
        return rows_with(1.4, 1.7, 0.96)

    monkeypatch.setattr("cutset.tools.bench.training.methods.make_contestants", made)
    monkeypatch.setattr("cutset.tools.bench.training.methods.measure", rows_of)
    out = tmp_path / "methods.md"
    arguments = [
        "--data",
        "mnist:x",
        "--epochs",
        "2",
        "--rounds",
        "1",
        "--methods",
        "ssp, sync",
        "-o",
        str(out),
        "--json",
    ]
    done = CliRunner().invoke(methods_bench_command, arguments)
    assert done.exit_code == 0, done.output
    assert asked == [("mnist:x", find_settings(["ssp", "sync"])), ("entries", 2, 1)]
    assert json.loads(done.output) == json.loads(json.dumps(tabulate(rows_with(1.4, 1.7, 0.96)).to_dict()))
    assert out.read_text() == f"{TABLE_MARK}\n" + tabulate(rows_with(1.4, 1.7, 0.96)).to_markdown()
    assert json.loads(done.output)["goals"][0]["met"] is True


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(methods_bench_command, ["--data", "mnist:x", "-o", str(tmp_path / "no" / "x.md")])
    assert isinstance(done.exception, UsageError)
    assert done.exception.code == "E222"
