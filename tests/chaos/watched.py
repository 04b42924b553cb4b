"""Trains for an hour while three browsers watch, in every other turn, and says how much that costs the training.

    make watched MINUTES=60
    make watched MINUTES=60 WATCHED='cutset.models:mnist_conv --data mnist:DIR'

Between their turns the browsers and the server of their page are stopped (SIGSTOP), so that what they have gathered in
memory stays as it would be. What they catch up with at the beginning of a turn is not theirs, but this test's, and so
the first seconds of each turn are left out. Needs Chromium, chromedriver, and a machine on which nothing else runs.
"""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from browser import Browser, open_browser

from cutset.tools.watching.metrics_reader import MetricsReader

CUTSET = str(Path(sys.executable).with_name("cutset"))
OPTIONS = ("--method=downpour", "--replicas=2", "--shards=2", "--no-baseline")
OPTIONS += ("--epochs=1000000", "--evaluate-every=1000000000")
BROWSERS, TURN_S, LEFT_OUT_S = 3, 25.0, 6.0
LEAST_SPEED, MOST_GROWTH = 0.98, 1.1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """What was measured in one turn: moments in seconds of the clock, seconds of a CPU, and bytes."""

    watched: bool
    begin: float
    end: float
    browser_cpu_s: float
    server_cpu_s: float
    browser_memory: int
    server_memory: int


def processes_of(leader: int) -> list[int]:
    """Return the processes in the session of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == leader:
            found.append(int(folder.name))
    return found


def measure(leaders: list[int]) -> tuple[float, int]:
    """Return seconds of a CPU, and bytes of memory that no process shares or of which each has its part."""
    ticks = memory = 0
    for process in itertools.chain.from_iterable(map(processes_of, leaders)):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        ticks += int(fields[11]) + int(fields[12])
        memory += next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
    return ticks / TICKS_PER_S, memory


def send(leaders: list[int], number: signal.Signals) -> None:
    """Send a signal to all processes of some sessions."""
    for process in itertools.chain.from_iterable(map(processes_of, leaders)):
        with suppress(ProcessLookupError):  # it has ended
            os.kill(process, number)


def take_turn(watched: bool, browsers: list[int], server: int) -> Turn:
    """Let the browsers go on or hold them for a turn."""
    send([*browsers, server], signal.SIGCONT if watched else signal.SIGSTOP)
    time.sleep(LEFT_OUT_S)
    begin, before, served = time.time(), measure(browsers)[0], measure([server])[0]
    time.sleep(TURN_S - LEFT_OUT_S)
    (cpu_s, memory), (server_cpu_s, server_memory) = measure(browsers), measure([server])
    return Turn(watched, begin, time.time(), cpu_s - before, server_cpu_s - served, memory, server_memory)


def count_samples(folder: Path, turns: list[Turn]) -> list[float]:
    """Return the samples per second of each turn, by the step events of the run."""
    steps = [event for event in MetricsReader(folder).read() if event["event"] == "step"]
    times, samples = [event["time"] for event in steps], [event["samples"] for event in steps]

    def samples_at(moment: float) -> float:
        after = min(max(bisect_left(times, moment), 1), len(times) - 1)
        part = (moment - times[after - 1]) / (times[after] - times[after - 1])
        return float(samples[after - 1] + part * (samples[after] - samples[after - 1]))

    return [(samples_at(turn.end) - samples_at(turn.begin)) / (turn.end - turn.begin) for turn in turns]


def judge(turns: list[Turn], speeds: list[float]) -> list[str]:
    """Print what was measured; return what is not as it should be."""
    inner = [number for number in range(1, len(turns) - 1) if turns[number].watched]
    ratios = [2 * speeds[number] / (speeds[number - 1] + speeds[number + 1]) for number in inner]
    watched = [turns[number] for number in inner]
    seconds = sum(turn.end - turn.begin for turn in watched)
    cpu, served = sum(turn.browser_cpu_s for turn in watched), sum(turn.server_cpu_s for turn in watched)
    third = max(len(watched) // 3, 1)
    first = statistics.median(turn.browser_memory for turn in watched[:third])
    last = statistics.median(turn.browser_memory for turn in watched[-third:])
    ordered = " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
    print(f"{len(ratios)} watched turns, each over its two neighbours: {ordered}")
    print(f"median {statistics.median(ratios):.3f}, mean {statistics.mean(ratios):.3f}")
    print(
        f"{BROWSERS} browsers: {cpu / seconds:.4f} cores, {first / 2**20:.0f} MiB at first, {last / 2**20:.0f} at last"
    )
    server = [turn.server_memory / 2**20 for turn in watched]
    print(f"server of the page: {served / seconds:.4f} cores, {server[0]:.0f} MiB at first, {server[-1]:.0f} at last")
    wrong = []
    if statistics.median(ratios) < LEAST_SPEED:
        wrong.append(f"watched, training is less than {LEAST_SPEED} times as fast")
    if last > MOST_GROWTH * first:
        wrong.append("the browsers' memory grew")
    if server[-1] > MOST_GROWTH * server[0]:
        wrong.append("the server's memory grew")
    return wrong


def open_page(stack: ExitStack, address: str, profile: Path) -> tuple[Browser, int]:
    """Open the page in a browser of its own; return it, and the process that leads its session."""
    before = {int(found.name) for found in Path("/proc").glob("[0-9]*")}
    browser = stack.enter_context(open_browser(profile))
    browser.open(address)
    begun = {int(found.name) for found in Path("/proc").glob("[0-9]*")} - before
    return browser, next(process for process in sorted(begun) if process in processes_of(process))


def main(minutes: float, task: list[str]) -> int:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cutset-watched-")))
        folder = place / "run"
        log = stack.enter_context((place / "log").open("w"))
        training = subprocess.Popen([CUTSET, "train", *task, *OPTIONS, f"--out={folder}"], stdout=log, stderr=log)
        stack.callback(training.wait)
        stack.callback(training.send_signal, signal.SIGINT)
        while not (folder / "metrics.jsonl").exists():
            assert training.poll() is None, (place / "log").read_text()
            time.sleep(0.1)
        server = stack.enter_context(
            subprocess.Popen(
                [CUTSET, "watch", "--web", str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        pages = [open_page(stack, address, place / f"profile-{number}") for number in range(BROWSERS)]
        leaders = [leader for _, leader in pages]
        stack.callback(send, [*leaders, server.pid], signal.SIGCONT)  # else they could not be ended
        end, turns = time.monotonic() + 60 * minutes, list[Turn]()
        while time.monotonic() < end or not turns or turns[-1].watched:
            turns.append(take_turn(len(turns) % 2 == 1, leaders, server.pid))
            assert training.poll() is None, (place / "log").read_text()
            speed = count_samples(folder, turns[-1:])[0]
            print(f"{'watched' if turns[-1].watched else 'alone':8} {speed:8.0f} samples/s  {turns[-1]}", flush=True)
        send([*leaders, server.pid], signal.SIGCONT)
        texts = [browser.text() for browser, _ in pages]
        wrong = judge(turns, count_samples(folder, turns))
        wrong += [f"browser {number} shows no steps" for number, text in enumerate(texts) if "samples" not in text]
    print("; ".join(wrong) or "all is well")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
