"""`cutset launch`: a script that keeps its loop trains as replicas, goes on after faults, and fails in words."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from marking import with_slow
from places import ROOT
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CUTSET = Path(sys.executable).with_name("cutset")
LINE = ROOT / "tests" / "support" / "user_scripts" / "line.py"
DRAWING, GROUPS = LINE.with_name("drawing.py"), LINE.with_name("groups.py")
BATCHES = 16  # of an epoch


class Launched:
    """A script that was launched with two replicas: how it ended, and what each replica wrote."""

    def __init__(self, folder: Path, *options: str, script: Path = LINE, arguments: tuple[str, ...] = ()) -> None:
        self.out = folder / "run"
        folder.mkdir(exist_ok=True)
        command = [CUTSET, "launch", "--out", self.out, "--replicas", "2", *options, script]
        if script in (LINE, DRAWING):
            command.append(folder)
        done = subprocess.run(
            [*map(str, command), *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        self.code, self.shown, self.notes = done.returncode, done.stdout, done.stderr
        self.replicas: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in folder.glob("replica-*")}

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "result.json").read_text()))


def train_plainly(replicas: int, epochs: int) -> list[float]:
    """What torch makes of the line, where each step is on the mean over the batches of all replicas."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 5, dtype=torch.float64)
    targets = inputs @ torch.arange(5.0, dtype=torch.float64)
    model = nn.Linear(5, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    order = torch.Generator().manual_seed(1)
    data = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True, generator=order)
    for _ in range(epochs):
        batches = list(data)
        for first in range(0, len(batches), replicas):
            optimizer.zero_grad()
            for x, y in batches[first : first + replicas]:
                ((model(x)[:, 0] - y).square().mean() / replicas).backward()
            optimizer.step()
            schedule.step()
    return [float(w) for w in model.weight.detach()[0]]


@pytest.mark.run
def test_replicas_in_lock_step_train_as_one_process_on_all_their_batches(tmp_path: Path) -> None:
    run = Launched(tmp_path, "--method", "sync")
    assert run.code == 0, run.notes
    expected = train_plainly(2, 3)
    for replica in run.replicas.values():
        assert replica["weights"] == pytest.approx(expected, abs=1e-12)
        assert replica["rates"] == pytest.approx([0.05 * 0.99**step for step in range(24)])
    assert load_file(run.out / "model.safetensors")["weight"][0].tolist() == pytest.approx(expected, abs=1e-12)
    first, second = (set(run.replicas[f"replica-{r}"]["seen"]) for r in range(2))
    assert first | second == set(range(64))
    assert run.shown == "96 samples seen, ScriptRun(replica 0 of 2, from step 0)\n", "the other's goes to its log"
    assert "96 samples seen" in (run.out / "logs" / "worker-1.0.log").read_text()
    (row,) = run.result["rows"]
    assert row["samples"] == 3 * 64
    assert row["curve"][-1]["metrics"]["distance"] == pytest.approx(
        float((torch.tensor(expected) - torch.arange(5.0)).norm()), rel=1e-4
    )


@pytest.mark.run
@pytest.mark.parametrize(("replicas", "method"), with_slow([(2, "sync")], [(1, "downpour"), (1, "averaging:every=1")]))
def test_groups_of_parameters_may_have_schedules_of_their_own(tmp_path: Path, replicas: int, method: str) -> None:
    plain = subprocess.run([sys.executable, GROUPS], capture_output=True, text=True, timeout=300, check=True).stdout
    run = Launched(tmp_path, "--replicas", str(replicas), "--method", method, script=GROUPS)
    assert run.code == 0, run.notes
    assert json.loads(run.shown) == pytest.approx(json.loads(plain), rel=1e-9)


METHODS = [
    "diloco:every=5,overlap=true,outer_lr=0.5,momentum=0",
    "downpour",
    "downpour:push=3,fetch=2",
    "ssp",
    "averaging:every=5",
    "easgd",
]


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, "sync"])
def test_every_method_trains_it_to_its_end_though_that_comes_at_another_step_for_each(
    tmp_path: Path, method: str
) -> None:
    run = Launched(tmp_path, "--method", method, arguments=("--count", "68", "--epochs", "9"))  # 17 batches
    assert run.code == 0, run.notes
    assert {name: one["steps"] for name, one in run.replicas.items()} == {"replica-0": 81, "replica-1": 72}
    a, b = (run.replicas[f"replica-{r}"]["weights"] for r in range(2))
    assert a == b == load_file(run.out / "model.safetensors")["weight"][0].tolist()
    assert a == pytest.approx([0, 1, 2, 3, 4], abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "accumulate"), [("downpour", 1), ("ssp", 1), ("downpour", 2)])
def test_a_killed_replica_goes_on_where_it_was(tmp_path: Path, method: str, accumulate: int) -> None:
    options = ("--fault", "kill", "--epochs", "6", "--accumulate", str(accumulate))
    run = Launched(tmp_path, "--method", method, arguments=options)
    assert run.code == 0, run.notes
    assert "replica 1 restarts at step" in run.notes
    before, after = run.replicas["replica-1"], run.replicas["replica-1-later"]
    assert after["start"] in (8, 9), "its last push may have been lost with it"
    again = before["seen"][after["start"] * 4 * accumulate :]
    whole = run.replicas["replica-0"]["seen"] + before["seen"] + after["seen"]
    assert sorted(whole) == sorted([*range(64)] * 6 + again)
    rates = [0.05 * 0.99**step for step in range(48 // accumulate)]
    assert after["rates"] == pytest.approx(rates[after["start"] :])


@pytest.mark.slow
def test_where_replicas_go_in_lock_step_all_go_back(tmp_path: Path) -> None:
    run = Launched(tmp_path, "--method", "sync", arguments=("--fault", "kill"))
    assert run.code == 0, run.notes
    assert "all go back" in run.notes
    assert run.replicas["replica-0"]["weights"] == pytest.approx(train_plainly(2, 3), abs=1e-12)


@pytest.mark.slow
def test_it_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    first = Launched(tmp_path / "first", "--method", "sync", arguments=("--epochs", "2"))
    assert first.code == 0, first.notes
    options = ("--method", "sync", "--resume", str(first.out))
    run = Launched(tmp_path / "second", *options, arguments=("--epochs", "5"))
    assert run.code == 0, run.notes
    assert [one["start"] for one in run.replicas.values()] == [16, 16]
    assert run.replicas["replica-0"]["weights"] == pytest.approx(train_plainly(2, 5), abs=1e-12)
    other = Launched(tmp_path / "third", "--resume", str(first.out), arguments=("--epochs", "5"))
    assert "E292" in other.notes


@pytest.mark.slow
def test_with_other_replicas_it_begins_with_the_first_batch_that_was_left(tmp_path: Path) -> None:
    """After 5 steps of two, 10 of the 16 batches of an epoch, it goes on with three."""
    first = Launched(tmp_path / "first", "--method", "sync", "--checkpoint-every", "5", arguments=("--epochs", "2"))
    assert first.code == 0, first.notes
    options = ("--method", "sync", "--replicas", "3", "--resume", str(first.out / "checkpoints" / "000001"))
    run = Launched(tmp_path / "second", *options, arguments=("--epochs", "2"))
    assert run.code == 0, run.notes
    assert "again" not in run.notes
    before = [number for one in first.replicas.values() for number in one["seen"][: 5 * 4]]
    after = [number for one in run.replicas.values() for number in one["seen"]]
    assert sorted(before + after) == sorted([*range(64)] * 2)


@pytest.mark.slow
def test_of_other_data_it_says_that_samples_of_a_pass_that_had_begun_come_again(tmp_path: Path) -> None:
    """After 5 steps of two, 10 of the 16 batches of a pass; but after both passes nothing is to be said."""
    first = Launched(tmp_path / "first", "--method", "sync", "--checkpoint-every", "5", arguments=("--epochs", "2"))
    assert first.code == 0, first.notes
    for number, (where, says) in enumerate(((first.out / "checkpoints" / "000001", True), (first.out, False))):
        options = ("--method", "sync", "--resume", str(where))
        more = Launched(tmp_path / f"more {number}", *options, arguments=("--epochs", "3", "--count", "72"))
        assert more.code == 0, more.notes
        assert ("the data has 72 samples now, not 64 as when the checkpoint was made" in more.notes) == says


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sync", "downpour"])
def test_a_loop_that_leaves_its_data_early_goes_on_where_it_was(tmp_path: Path, method: str) -> None:
    """After three of the 8 batches of each replica."""
    arguments = ("--leaves", "3", "--epochs")
    whole = Launched(tmp_path / "whole", "--method", method, arguments=(*arguments, "4"))
    first = Launched(tmp_path / "first", "--method", method, arguments=(*arguments, "2"))
    options = ("--method", method, "--resume", str(first.out))
    run = Launched(tmp_path / "second", *options, arguments=(*arguments, "4"))
    assert run.code == 0, run.notes
    for name, replica in run.replicas.items():
        assert first.replicas[name]["seen"] + replica["seen"] == whole.replicas[name]["seen"]
        assert replica["steps"] == 4 * 3


@pytest.mark.slow
def test_each_replica_goes_on_after_its_own_steps(tmp_path: Path) -> None:
    """Of 17 batches one has 9 in an epoch, and one 8."""
    arguments = ("--count", "68", "--epochs")
    first = Launched(tmp_path / "first", "--method", "downpour", arguments=(*arguments, "3"))
    options = ("--method", "downpour", "--resume", str(first.out))
    run = Launched(tmp_path / "second", *options, arguments=(*arguments, "5"))
    assert run.code == 0, run.notes
    for name, count in (("replica-0", 9), ("replica-1", 8)):
        assert len(first.replicas[name]["seen"]) == 3 * 4 * count
        assert len(run.replicas[name]["seen"]) == 2 * 4 * count
    assert sorted(n for one in run.replicas.values() for n in one["seen"]) == sorted([*range(68)] * 2)


@pytest.mark.slow
def test_a_loop_over_steps_goes_on_in_the_pass_in_which_it_was(tmp_path: Path) -> None:
    """After 12 steps of 5 batches a pass. One that gets no batch of a pass that was made before is told how to."""
    first = Launched(tmp_path / "first", "--method", "sync", script=DRAWING)
    assert first.code == 0, first.notes
    options = ("--method", "sync", "--resume", str(first.out))
    run = Launched(tmp_path / "second", *options, script=DRAWING, arguments=("--steps", "20"))
    assert run.code == 0, run.notes
    whole = Launched(tmp_path / "whole", "--method", "sync", script=DRAWING, arguments=("--steps", "20"))
    for name, replica in run.replicas.items():
        assert replica["start"] == 12
        assert first.replicas[name]["seen"] + replica["seen"] == whole.replicas[name]["seen"]
    other = Launched(tmp_path / "third", *options, script=DRAWING, arguments=("--steps", "20", "--by", "iterator"))
    assert other.code == 3
    assert "E363" in other.notes
    assert "while True: yield from data" in other.notes


FAULTS = [
    ("raise", "E363", "the script line.py fails at"),
    ("exit", "E363", "SystemExit: 3"),
    ("twice", "E363", "run.prepare is called twice"),
    ("nothing", "E363", "has not called run.prepare"),
    ("nan", "E70", "to be finite"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code", "words"), FAULTS)
def test_what_a_script_does_wrong_is_named(tmp_path: Path, fault: str, code: str, words: str) -> None:
    run = Launched(tmp_path, arguments=("--fault", fault))
    assert run.code in (3, 7)
    assert code in run.notes
    assert words in run.notes
    assert (f"{LINE}:" in run.notes) == (fault in ("raise", "exit", "twice"))
    if fault == "raise":
        assert "no more patience" in run.notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "script", "code"),
    with_slow(
        [(("--method", "hogwild"), LINE, "E265")],
        [((), Path("nothing.py"), "E301"), (("--method", "no"), LINE, "E252")],
    ),
)
def test_what_cannot_be_launched_is_refused_at_once(
    tmp_path: Path, options: tuple[str, ...], script: Path, code: str
) -> None:
    run = Launched(tmp_path, *options, script=script)
    assert run.code in (2, 3)
    assert code in run.notes
    assert not run.out.exists()


@pytest.mark.slow
def test_a_script_that_nobody_launched_trains_by_itself(tmp_path: Path) -> None:
    subprocess.run([sys.executable, LINE, tmp_path], check=True, capture_output=True, env={**os.environ}, timeout=120)
    alone = json.loads((tmp_path / "replica-0.json").read_text())
    assert alone["steps"] == 3 * BATCHES
    assert alone["weights"] == pytest.approx(train_plainly(1, 3), abs=1e-12)
