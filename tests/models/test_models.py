"""The face of `cutset.models`."""

import subprocess
import sys

import pytest

import cutset.models


def test_every_name_is_there():
    for name in cutset.models.__all__:
        assert getattr(cutset.models, name).__name__ == name
    assert set(cutset.models.__all__) <= set(dir(cutset.models))


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="has no attribute 'imagenet'"):
        _ = cutset.models.imagenet


def test_importing_it_does_not_load_torch():
    code = "import sys, cutset.models; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
