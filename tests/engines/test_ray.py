"""Runs on a real Ray cluster of three nodes on this machine."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import USAGE, Cutset
from command_line import cutset as cutset
from engine_runs import TASK, check_bits

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: cutset[ray]"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster with three nodes of two CPUs each."""
    utils: Any = importlib.import_module("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """Ray keeps idle processes for what may come, as long as the cluster is there."""


def test_a_run_on_three_nodes(tmp_path: Path, cutset: Cutset, address: str) -> None:
    check_bits(cutset, tmp_path, f"ray:{address}")


def test_a_cluster_that_is_too_small_or_not_there(tmp_path: Path, cutset: Cutset, address: str) -> None:
    small = cutset("train", TASK, "--machines", "4", "--on", f"ray:{address}", "--out", tmp_path / "small")
    assert (small.code, "has 3 of the 4 machines" in small.err) == (USAGE, True), small.err
    nowhere = cutset("train", TASK, "--on", "ray:127.0.0.1:9", "--out", tmp_path / "nowhere")
    assert (nowhere.code, "no Ray cluster answers" in nowhere.err) == (USAGE, True), nowhere.err
