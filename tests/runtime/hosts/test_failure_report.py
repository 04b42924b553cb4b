"""What a role says of its own end, and what becomes of it."""

import errno
import mmap

import pytest
import torch

from cutset.errors import Diverged, NetworkError, ProcessLost
from cutset.runtime.hosts.failure_report import Failure, describe_failure, out_of_memory_error


def test_an_error_of_the_tree_comes_back_as_it_was() -> None:
    said = describe_failure(Diverged("E701", "the loss is NaN", fix="a smaller --lr"), "worker-1.0", "Traceback")
    error = said.to_error("worker-1.0")
    assert type(error) is Diverged
    assert (error.code, error.facts, error.fix) == ("E701", "worker-1.0: the loss is NaN", "a smaller --lr")
    assert error.__notes__ == ["in worker-1.0:\nTraceback"]


def test_any_other_exception_is_a_lost_process_with_its_traceback() -> None:
    error = describe_failure(ValueError("no"), "shard-0", "Traceback\nValueError: no").to_error("shard-0")
    assert type(error) is ProcessLost
    assert error.facts == "shard-0 raised ValueError: no\nTraceback\nValueError: no"


def test_a_long_traceback_keeps_its_end() -> None:
    assert describe_failure(ValueError(), "a", "x" * 60_000 + "end").traceback.endswith("xend")
    assert len(describe_failure(ValueError(), "a", "x" * 60_000).traceback) == 50_000


def test_a_network_error_stays_one() -> None:
    assert type(Failure("E502", 5, "a gap", "", "").to_error("a")) is NetworkError


def test_torch_out_of_memory_says_how_much_was_asked_of_whom() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    said = describe_failure(caught.value, "worker-0.1", "Traceback")
    assert (said.code, said.exit_code) == ("E609", 6)
    assert said.facts.startswith("worker-0.1 ran out of memory: it asked for 1,099,511,627,776.0 MiB more than its")
    assert all(words in said.fix for words in ("--machines", "--batch", "--micro-batches"))


def test_python_out_of_memory_is_named_too() -> None:
    error = out_of_memory_error(MemoryError(), "worker-0.1")
    assert error is not None
    assert error.facts == "worker-0.1 ran out of memory: it asked for more than its machine can give"


def test_memory_that_the_system_refuses_to_map_is_named_too() -> None:
    with pytest.raises(OSError, match="allocate memory") as caught:
        mmap.mmap(-1, 1 << 60)
    error = out_of_memory_error(caught.value, "worker-0.1")
    assert error is not None
    assert (error.code, error.exit_code) == ("E609", 6)
    assert out_of_memory_error(OSError(errno.ENOENT, "no such file"), "worker-0.1") is None


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("not enough memory of this")])
def test_other_errors_are_not(error: Exception) -> None:
    assert out_of_memory_error(error, "worker-0.1") is None
