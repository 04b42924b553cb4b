"""The garbage collector rests meanwhile, and is as before afterwards."""

import gc

import pytest

from cutset.partition.ir.garbage import leave_garbage


def test_it_rests_and_goes_on() -> None:
    assert gc.isenabled()
    with leave_garbage():
        assert not gc.isenabled()
        with leave_garbage():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), leave_garbage():
        raise ValueError("x")
    assert gc.isenabled()
