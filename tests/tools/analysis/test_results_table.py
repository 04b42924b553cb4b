"""Rows and sentences of the results table."""

from cutset.tools.analysis.results_table import describe_restart


def test_a_restart_is_described() -> None:
    restart = {"role": "replica 1", "step": 57, "code": "E602", "reason": "worker-1.0 was killed", "seconds": 4.06}
    sentence = "Replica 1 was restarted at step 57: worker-1.0 was killed"
    assert describe_restart(restart) == f"{sentence}; it was back after 4.1 s."
    assert describe_restart({**restart, "seconds": None}) == f"{sentence}."
    assert describe_restart({**restart, "role": "shard 0", "step": None, "seconds": None}) == (
        "Shard 0 was restarted: worker-1.0 was killed."
    )
