"""A run in the terminal, and as plain lines where there is none."""

import fcntl
import os
from pathlib import Path

from rich.console import Console
from watched_runs import Clock, begin_run, make_run_folder, worker_status, write_metrics

from cutset.tools.run_listener import LossReport, RolesReport, StepReport
from cutset.tools.watching.run_follower import RunFollower
from cutset.tools.watching.watch_terminal import watch_in_terminal


def watch_while_it_trains(folder: Path, *, is_terminal: bool, width: int = 180) -> str:
    """Let a run go on between two looks at it, and end after the third; return what was printed."""
    clock, held = Clock(), os.open(make_run_folder(folder), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    file, steps = write_metrics(folder, clock), iter(range(1, 4))
    recording = file.recording(task="digits", method="ssp", machines=1, replicas=1, shards=1)
    recording.__enter__()

    def go_on(seconds: float) -> None:
        number = next(steps)
        clock.now += 2
        shard = {
            "at_s": clock.now,
            "updates": number,
            "staleness": {"mean": 1.0, "p50": 1, "p90": 2, "max": 7},
            "unsaved_s": 9.0,
            "late": 3,
            "links": {},
            "rss": 5 << 20,
        }
        worker = worker_status(clock.now, 10 * number, shards=float(number))
        file.on_roles(RolesReport("ssp", {"worker-0.0": worker, "shard-0": shard}, leases=4))
        file.on_step(StepReport("ssp", number, 9, 0.125, 8 * number, 2.0 * number))
        if number == 2:
            file.on_machine_lost(LossReport("replica 1", "killed by signal 9"))
        if number == 3:
            recording.__exit__(None, None, None)
            os.close(held)

    with (folder / "out").open("w") as out:
        console = Console(file=out, force_terminal=is_terminal, width=width, height=40, color_system=None)
        watch_in_terminal(RunFollower(folder, now=clock), console=console, wait=go_on)
    return (folder / "out").read_text()


def test_the_last_picture_has_everything(tmp_path: Path) -> None:
    shown = watch_while_it_trains(tmp_path, is_terminal=True)
    assert "worker-0.0" in shown
    picture = shown[shown.rindex("digits by ssp\n\n") :]
    assert "Ended after 6 s." in picture
    assert "ssp: step 3 of 9 (33 %), 24 samples, 4 samples/s, loss 0.125" in picture
    assert "lost: replica 1; killed by signal 9" in picture
    middle = shown[: shown.rindex("digits by ssp\n\n")]
    row = next(line for line in reversed(middle.splitlines()) if "worker-0.0" in line)
    assert all(words in row for words in ("step 20", " 50 %", "shards 50 %"))
    assert "staleness 1 to 2, at most 7; 3 pushes too late; not on disk for 9 s" in middle


def test_a_narrow_terminal_has_fewer_columns_and_no_cell_is_cut_off(tmp_path: Path) -> None:
    shown = watch_while_it_trains(tmp_path, is_terminal=True, width=80)
    assert "…" not in shown
    assert "worker-0.0" in shown
    assert "memory" not in shown
    assert "staleness 1 to 2" in " ".join(shown.split())


def test_without_a_terminal_there_are_plain_lines(tmp_path: Path) -> None:
    lines = watch_while_it_trains(tmp_path, is_terminal=False).splitlines()
    assert lines[0].endswith("began: digits by ssp")
    assert lines[1] == "ssp: step 1 of 9 (11 %), 8 samples, 4 samples/s, loss 0.125, 4 batches leased"
    assert [line.partition("leased, ")[2] for line in lines if "step 2" in line] == ["about 14 s left"], "2 s a step"
    assert [line.partition(" ")[2] for line in lines if "lost" in line] == ["lost: replica 1; killed by signal 9"]
    assert lines[-1] == "Ended after 6 s."
    assert "worker-0.0" not in "".join(lines)


def test_a_run_that_was_killed_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    clock = Clock()
    file = begin_run(make_run_folder(tmp_path), clock)
    file.on_step(StepReport("ssp", 7, 9, 0.125, 56, 2.0))
    with (tmp_path / "metrics.jsonl").open("a") as cut_short:
        cut_short.write('{"event": "ro')
    with (tmp_path / "out").open("w") as out:
        watch_in_terminal(RunFollower(tmp_path, now=clock), console=Console(file=out, width=150))
    text = (tmp_path / "out").read_text()
    assert "step 7 of 9 (78 %), 56 samples" in text
    assert "No process trains here any more; the last that was heard of it is of" in text
