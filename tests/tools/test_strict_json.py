"""JSON that every reader takes."""

import json

from cutset.tools.strict_json import to_json

VALUE = {"loss": float("nan"), "steps": [1, 2.5, float("inf")], "name": "Ω", "by number": {1: None}, "ok": (True,)}


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def test_what_is_not_finite_is_null() -> None:
    for indent in (0, 1):
        read = json.loads(to_json(VALUE, indent=indent), parse_constant=refuse)
        assert read == {"loss": None, "steps": [1, 2.5, None], "name": "Ω", "by number": {"1": None}, "ok": [True]}


def test_an_indent_gives_a_line_for_each_value() -> None:
    assert to_json({"a": 1, "b": [2]}) == '{"a":1,"b":[2]}'
    assert to_json({"a": 1, "b": [2]}, indent=1).splitlines() == ["{", ' "a": 1,', ' "b": [', "  2", " ]", "}"]
