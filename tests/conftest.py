"""One thread for torch, repeatable hypothesis examples, and a check after every test that it left nothing behind."""

import contextlib
import gc
import multiprocessing
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from busy import stretch
from hypothesis import settings

# Before torch is loaded, and for the processes that tests start, as roles have it (`role_environment`): the bits of a
# product depend neither on where its operands lie in memory nor on the thread that computes it.
os.environ.setdefault("MKL_CBWR", "AUTO")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUTSET_CLUSTER"] = "desktop"  # plans are those of constants, and no test but those of probes measures
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"cutset-tests-cache-{os.getuid()}")

import torch
from training_command import start as start
from training_command import training as training
from warm_servers import WARM

# Where checks are shared, a failure is to show values too.
pytest.register_assert_rewrite(
    *("elastic", "exactly_once", "fault_checks", "launched", "local_steps", "one_host", "refused_files", "resumed"),
    *("rule_tests", "scripted_shard"),
)

settings.register_profile("cutset", deadline=None, derandomize=True, database=None)
settings.load_profile("cutset")
torch.set_num_threads(1)

ROOT = Path(__file__).parent
GRACE_S = 2.0
SHARED_MEMORY = Path("/dev/shm")
OUR_SEGMENTS = ("cutset", "psm_", "torch_", "sem.mp-")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that share a fixture of their module run in one process, and whole runs begin first.

    Where several processes divide the suite, a run that begins last would leave the others without work. Of a test with
    the mark `first_cases(n)`, the cases after the n first are slow. All of tests/slow is for `make runs`.
    """
    cases = Counter[tuple[Path, str]]()
    for item in items:
        if item.path.parent == ROOT / "slow":
            item.add_marker("run")
        taken = item.get_closest_marker("first_cases")
        if taken is not None and item.get_closest_marker("slow") is None:
            test = item.path, item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > taken.args[0]:
                item.add_marker("slow")
    items.sort(key=lambda item: item.path.parent != ROOT)
    for item in items:
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
        grouped = item.get_closest_marker("xdist_group") is not None
        if not grouped and any(defined.scope == "module" for given in fixtures.values() for defined in given):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


def pytest_collection_finish() -> None:
    """Let no search for garbage go through the modules, which are there until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def warm_servers() -> Iterator[None]:
    """Roles of all tests are forks of few servers."""
    with WARM.installed():
        yield


def children() -> set[int]:
    """Processes that this one and its children started, and that have not ended and been waited for."""
    multiprocessing.active_children()  # waits for those that have ended
    return children_of("self") - {getattr(resource_tracker._resource_tracker, "_pid", None)} - WARM.pids()


def children_of(pid: str) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            for child in task.read_text().split():
                found |= {int(child), *children_of(child)}
    return found


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def segments() -> set[str]:
    if not SHARED_MEMORY.is_dir():
        return set()
    return {name for name in os.listdir(SHARED_MEMORY) if name.startswith(OUR_SEGMENTS)}


def mapped_elsewhere(segment: str) -> bool:
    """Whether a process that is no child of this one has it mapped, another test run for example."""
    mine = {os.getpid(), *children()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if int(maps.parent.name) not in mine and segment in maps.read_text():
                return True
        except OSError:  # ended meanwhile, or another user's
            continue
    return False


def left_behind(processes: set[int], running: set[threading.Thread], shared: set[str]) -> str:
    """What there is now and was not before, in words; empty if nothing."""
    found = [f"process {describe(pid)}" for pid in sorted(children() - processes)]
    found += [f"thread {thread.name}" for thread in threads() - running]
    found += [f"segment /dev/shm/{name}" for name in sorted(segments() - shared) if not mapped_elsewhere(name)]
    return ", ".join(found)


def describe(pid: int) -> str:
    try:
        return f"{pid} ({Path(f'/proc/{pid}/cmdline').read_text().replace(chr(0), ' ').strip() or 'not waited for'})"
    except OSError:
        return str(pid)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test after which a process, a thread or shared memory of its own is still there."""
    before = children(), threads(), segments()
    yield
    deadline = time.monotonic() + stretch(GRACE_S)  # ending takes a moment
    while (left := left_behind(*before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left behind: {left}"
