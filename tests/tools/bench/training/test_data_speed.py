"""The transforms that are measured cost what they say, and ratios are those of one round."""

import time
from collections.abc import Sequence

import pytest

from cutset.tools.bench.training import data_speed
from cutset.tools.bench.training.data_speed import (
    ALONE,
    BARE,
    COMPUTES,
    NONE,
    TORCH,
    WAITS,
    WAYS,
    DataSpeed,
    Images,
    images,
    tabulate,
)
from cutset.tools.bench.training.plain_loader import measure_loader
from cutset.tools.config.run_config import RunConfig
from cutset.tools.task.load_task import TaskSpec


def test_a_transform_costs_its_seconds_of_a_clock_or_of_a_core() -> None:
    clock, core = time.perf_counter(), time.thread_time()
    for number in range(5):
        Images(8, WAITS, 0.02)[number]
    assert time.perf_counter() - clock >= 0.1
    assert time.thread_time() - core < 0.1, "it waits without computing"
    core, images = time.thread_time(), Images(8, COMPUTES, 0.02)
    for number in range(5):
        images[number]
    assert time.thread_time() - core >= 0.1


def test_transforms_change_no_sample() -> None:
    task = images(COMPUTES, 1e-6)
    assert task.data is not None
    for one, other in zip(
        list(task.data("train"))[:9], list(Images(len(task.data("train")), NONE, 0.0))[:9], strict=True
    ):
        assert one[0].equal(other[0])
        assert one[1] == other[1]


def test_the_goal_is_for_cores_that_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.tools.bench.training.data_speed.read_cores", lambda: 2)
    rows = [
        DataSpeed("one process", 1, NONE, 0.01, [100.0, 200.0], [1.0, 1.0]),
        DataSpeed("one process", 1, COMPUTES, 0.01, [95.0, 150.0, 199.0], [0.95, 0.75, 0.99]),
        DataSpeed("2 replicas", 2, WAITS, 0.01, [80.0], [0.8]),
        DataSpeed("2 replicas", 2, COMPUTES, 0.01, [50.0], [0.5]),
        DataSpeed(TORCH, 2, WAITS, 0.01, [50.0], [0.5]),
        DataSpeed(BARE, 2, WAITS, 0.01, [50.0], [0.5]),
    ]
    table = tabulate(rows)
    assert [row["reached"] for row in table.to_dict()["rows"]] == [None, True, False, None, None, None]
    assert table.format_cells()[1] == ["one process", COMPUTES, "10.0 ms", "150", "0.95", "0.9: reached"]
    assert "2 cores" in table.notes[0]


def test_a_transform_costs_what_a_step_took_in_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speed is compared with that before and after; the machine is faster from training to training."""
    trained = list[tuple[str, float, list[str]]]()

    def train(transform: str, seconds: float, ways: Sequence[str], width: int) -> dict[str, data_speed._Speed]:
        assert width == 96
        trained.append((transform, seconds, list(ways)))
        speed = 100.0 * len(trained)
        speeds = {
            "one process": data_speed._Speed("one process", 1, 2, speed),
            "2 replicas": data_speed._Speed("2 replicas", 2, 2, 2 * speed),
            "torch, DataLoader": data_speed._Speed("torch, DataLoader", 1, 2, 4 * speed),
            BARE: data_speed._Speed(BARE, 1, 2, 5 * speed),
        }
        return {how: speeds[how] for how in (WAYS if ALONE in ways else ways)}

    monkeypatch.setattr(data_speed, "_train", train)
    rows = {(row.how, row.transform): row for row in data_speed.measure(rounds=2, width=96)}
    faster = {"one process": 1, "2 replicas": 1, TORCH: 4, BARE: 5}
    others = [(kind, how) for kind in (WAITS, COMPUTES) for how in WAYS if (kind, how) != (COMPUTES, BARE)]
    rounds = [
        [(NONE, 0.0, list(WAYS)), *((kind, 1 / (speed * faster[how]), [how]) for kind, how in others)]
        for speed in (100, 900)
    ]
    assert trained == [*rounds[0], *rounds[1], (NONE, 0.0, list(WAYS))]
    assert rows["one process", NONE].speeds == [100.0, 900.0]
    assert rows["one process", NONE].relative == rows["2 replicas", NONE].relative == [1.0, 1.0]
    assert rows["one process", WAITS].speeds == [200.0, 1000.0]
    assert rows["one process", WAITS].relative == [200 / 500, 1000 / 1300]
    assert rows["2 replicas", COMPUTES].speeds == [1400.0, 3000.0]
    assert rows["2 replicas", COMPUTES].relative == [1400 / 1000, 3000 / 2600]
    assert rows[TORCH, COMPUTES].relative == [3200 / 2000, 6400 / 5200]
    assert rows[BARE, WAITS].relative == [2500 / 2500, 6500 / 6500]
    assert rows["one process", COMPUTES].step_s == pytest.approx((0.32 + 0.32 / 9) / 2)
    assert len(rows) == 11


def test_ours_train_by_sgd_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = list[RunConfig]()

    def run_none(config: RunConfig) -> None:
        configs.append(config)

    rows = [{"threads": 2, "samples_per_s": 10.0}, {"threads": 1, "samples_per_s": 20.0}]
    monkeypatch.setattr(data_speed, "prepare", run_none)
    monkeypatch.setattr(data_speed, "run", lambda job: {"rows": rows})
    speeds = data_speed._train(NONE, 0.0, [ALONE], 16)
    assert [(config.optimizer, config.lr) for config in configs] == [("sgd", data_speed.LR)]
    assert [(one.how, one.samples_per_s, one.threads) for one in speeds.values()] == [
        (ALONE, 10.0, 2),
        ("2 replicas", 20.0, 2),
    ]


def test_the_net_and_its_images_have_the_width() -> None:
    task = images(width=48)
    assert task.data is not None
    assert task.data("train")[3][0].shape == (48,)
    assert [tuple(p.shape) for p in task.model().parameters() if p.dim() == 2] == [(48, 48), (48, 48), (10, 48)]


@pytest.mark.run
def test_a_plain_loop_over_a_data_loader_is_timed() -> None:
    speed = measure_loader(
        TaskSpec(f"{data_speed.__name__}:images(transform='waits',seconds=0.0001)"), workers=1, threads=1, lr=0.01
    )
    assert 0 < speed < 10_000, "a sample waits 0.1 ms, in one process"
