"""How workers are named, in every incarnation of their replica."""

from cutset.tools.job.process_specs import worker_name


def test_a_worker_is_named_after_its_replica_and_machine() -> None:
    assert worker_name(1, 2) == "worker-1.2"
    assert worker_name(1, 2, 3) == "worker-1.2+3"
