"""The environment of a role: what it needs so that one machine gives the same bits, whatever its processor."""

import os
import subprocess
import sys

import pytest
from places import SUPPORT

from cutset.runtime.hosts.role_process import role_environment


def test_the_users_own_setting_of_mkl_is_kept() -> None:
    assert role_environment({}, threads=1)["MKL_CBWR"] == "AUTO"
    assert role_environment({"MKL_CBWR": "COMPATIBLE"}, threads=1)["MKL_CBWR"] == "COMPATIBLE"


def test_the_threads_are_those_of_the_role() -> None:
    environment = role_environment({"OMP_NUM_THREADS": "7", "MARK": "kept"}, threads=2)
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"], environment["MARK"]) == ("2", "2", "kept")


def test_malloc_asks_for_huge_pages_unless_the_user_says_otherwise() -> None:
    assert role_environment({}, threads=1)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    users = role_environment({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, threads=1)["GLIBC_TUNABLES"]
    assert users == "glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0"


@pytest.mark.run
def test_in_a_role_a_product_has_the_same_bits_wherever_its_operands_lie() -> None:
    base = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    role = subprocess.run(
        [sys.executable, f"{SUPPORT}/product_bits.py"],
        env=role_environment(base, threads=1),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert role.stdout == "[1]\n"
