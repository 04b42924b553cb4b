"""How workers are named."""

from cutset.tools.job.run_config import worker_name


def test_a_worker_is_named_after_its_replica_and_machine() -> None:
    assert worker_name(1, 2) == "worker-1.2"
    assert worker_name(1, 2, 3) == "worker-1.2+3"
