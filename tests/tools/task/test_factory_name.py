"""Names of factories and their arguments: literals alone, and nothing is evaluated."""

import string
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import UsageError
from cutset.models.tasks.digits import digits
from cutset.tools.task.factory_name import FactoryName, name_factory, parse_factory

literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
names = st.text(string.ascii_lowercase, min_size=1).map(lambda name: f"a_{name}")


@given(st.dictionaries(names, literals, max_size=3))
def test_every_literal_is_read_back(arguments):
    text = ",".join(f"{name}={value!r}" for name, value in arguments.items())
    assert parse_factory(f"pkg.module:factory({text})") == FactoryName("pkg.module", "factory", arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cutset.models:digits", ("cutset.models", "digits", {})),
        ("cutset.models:digits()", ("cutset.models", "digits", {})),
        ("m:f(a=1, b=-2.5,)", ("m", "f", {"a": 1, "b": -2.5})),
        ("m:f(name='x:y(z)')", ("m", "f", {"name": "x:y(z)"})),
        ("m:f(\n a=1 # one\n)", ("m", "f", {"a": 1})),
        ("runs (old)/net.py:f(a=1)", ("runs (old)/net.py", "f", {"a": 1})),
        ("runs:old/net.py:f", ("runs:old/net.py", "f", {})),
        ("C:\\nets\\net.py:f", ("C:\\nets\\net.py", "f", {})),
    ],
)
def test_names_of_all_forms(text, expected):
    assert parse_factory(text) == FactoryName(*expected)


@pytest.mark.parametrize(
    "text", ["", ":", "m:", ":f", "m", "m:f(", "m:f)", "m:f()x", "m:f(a=1)(b=2", "m:1f g", "m:f g"]
)
def test_other_forms_are_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_factory(text)
    assert caught.value.code == "E210"
    assert repr(text) in caught.value.facts


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("12", "argument 12 has no name"),
        ("*[1]", "has no name"),
        ("**{'a': 1}", "hold a dictionary"),
        ("a=1,a=2", "a"),
        ("a=", "cannot be read"),
        ("a=1 # no end", None),
        ("a=os", "a=os is no number"),
        ("a=open('x')", r"a=open\('x'\) is no number"),
        ("a=().__class__", "is no number"),
        ("a=2**99999999", "is no number"),
        ("a=[x for x in ()]", "is no number"),
        ("a={[]: 1}", "is no number"),
        ("a=f'{1}'", "is no number"),
        ("a=lambda: 1", "is no number"),
        ("a=1)(b=2", "not one list"),
        ("a=1)+f(b=2", "not one list"),
        ("a=1), f(b=2", "not one list"),
        ("a=1); f(b=2", "cannot be read"),
        ("a:=1", "has no name"),
        ("1a=1", "cannot be read"),
        ("a='", "cannot be read"),
        ("a=\x00", "cannot be read"),
        ("a=" + "(" * 5000 + ")" * 5000, "cannot be read"),
        ("a=" + "-" * 100_000 + "1", "cannot be read|is no number"),
    ],
)
def test_arguments_that_are_no_literals_are_refused(arguments, said):
    if said is None:  # a comment is no error: what it hides is not there
        assert parse_factory(f"m:f({arguments})").arguments == {"a": 1}
        return
    with pytest.raises(UsageError, match=said) as caught:
        parse_factory(f"m:f({arguments})")
    assert caught.value.code == "E215"
    assert "transformer(layers=12,width=768)" in caught.value.fix


def test_a_function_is_named_by_its_module_or_its_file() -> None:
    assert name_factory(digits) == "cutset.models.tasks.digits:digits"
    assert name_factory("net.py:task") == "net.py:task"
    assert name_factory(partial(digits, data=None)) == "cutset.models.tasks.digits:digits(data=None)"
    file = {"__name__": "__main__"}
    exec(compile("def task(): pass", __file__, "exec"), file)
    assert name_factory(file["task"]) == f"{Path(__file__).resolve()}:task"


@pytest.mark.parametrize("what", [digits(), lambda: digits(), partial, 3], ids=["task", "lambda", "class", "number"])
def test_what_no_other_process_finds_is_refused(what: object) -> None:
    with pytest.raises(UsageError, match=r"E227: the task is .*cannot find by a name\n  fix: .*def task\(\)"):
        name_factory(what)


def test_a_function_of_an_interactive_session_is_refused() -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def task(): pass", "<stdin>", "exec"), session)
    with pytest.raises(UsageError, match=r"E227: the function task stands in no file"):
        name_factory(session["task"])
