"""JSON that every reader takes."""

import json

import numpy as np
import pytest
import torch

from cutset.tools.strict_json import to_json

VALUE = {"loss": float("nan"), "steps": [1, 2.5, float("inf")], "name": "Ω", "by number": {1: None}, "ok": (True,)}


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def test_what_is_not_finite_is_null() -> None:
    for indent in (0, 1):
        read = json.loads(to_json(VALUE, indent=indent), parse_constant=refuse)
        assert read == {"loss": None, "steps": [1, 2.5, None], "name": "Ω", "by number": {"1": None}, "ok": [True]}


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    numbers = [np.float32(0.5), np.float64("nan"), torch.tensor(3), np.int64(4), np.float16("inf")]
    assert json.loads(to_json(numbers)) == [0.5, None, 3, 4, None]
    with pytest.raises(TypeError, match="ndarray is no JSON"):
        to_json([np.zeros(2)])


def test_a_file_name_that_is_no_utf_8_is_readable() -> None:
    name = b"run-\xff".decode(errors="surrogateescape")
    assert json.loads(to_json([name])) == [name]
    assert to_json([name]).isascii()


def test_an_indent_gives_a_line_for_each_value() -> None:
    assert to_json({"a": 1, "b": [2]}) == '{"a": 1, "b": [2]}'
    assert to_json({"a": 1, "b": [2]}, indent=1).splitlines() == ["{", ' "a": 1,', ' "b": [', "  2", " ]", "}"]
