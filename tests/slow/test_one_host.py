"""Methods whose replicas are on one host, with a model that is not cut; tests/tools/test_one_host.py has cut ones."""

from pathlib import Path

import pytest
from command_line import Cutset
from command_line import cutset as cutset
from one_host import check_two_replicas_learn


@pytest.mark.parametrize("method", ["allreduce", "hogwild"])
def test_two_replicas_learn(cutset: Cutset, tmp_path: Path, method: str) -> None:
    check_two_replicas_learn(cutset, tmp_path, method, 1)
