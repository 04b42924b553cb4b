"""Texts of files that a reader must refuse."""

from collections.abc import Callable

import pytest

from cutset.errors import BadInput


def assert_refused(read: Callable[[str, str], object], text: str, file: str, code: str, said: str) -> None:
    """A reader of a text and its file's name raises BadInput: this code, facts with these words in them, and a fix."""
    with pytest.raises(BadInput) as caught:
        read(text, file)
    found = caught.value
    # pytest explains only the assertions of test files, and of modules that conftest names.
    assert found.code == code, f"{found.code} instead of {code}: {found.facts}"
    assert said in found.facts, f"{said!r} is not in {found.facts!r}"
    assert found.fix, f"no fix for: {found.facts}"
