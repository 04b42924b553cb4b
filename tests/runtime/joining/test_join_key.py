"""The key of a run: a file that only its owner may read, for ten minutes, from which both sides make the same pairs."""

from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.runtime.joining import join_key
from cutset.runtime.joining.join_key import make_join_key, read_join_key, write_join_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_join_key(make_join_key("192.0.2.1"), tmp_path / "key")
    return tmp_path / "key"


def test_both_sides_make_the_same_pairs(path: Path) -> None:
    here, there = read_join_key(path), read_join_key(path)
    keys = here.door_keys(3)
    assert keys.public == there.make_pass(0).server
    assert [keys.allowed[str(number)] for number in range(3)] == [there.make_pass(n).public for n in range(3)]
    assert len({keys.public, *keys.allowed.values()}) == 4
    assert make_join_key("192.0.2.1").door_keys(1).public != keys.public


def test_only_its_owner_may_read_it_and_it_is_never_replaced(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o400
    before = path.read_bytes()
    with pytest.raises(UsageError, match="no key can be written"):
        write_join_key(make_join_key("192.0.2.1"), path)
    assert path.read_bytes() == before
    path.chmod(0o440)
    with pytest.raises(UsageError, match="others may read the key"):
        read_join_key(path)


def test_it_is_refused_when_it_is_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_at = read_join_key(path).made_at
    monkeypatch.setattr(join_key, "read_clock", lambda: made_at + 601)
    with pytest.raises(UsageError, match="older than 10 minutes"):
        read_join_key(path)


@pytest.mark.parametrize("text", ["", "{}", '{"secret": "xyz", "address": "a", "port": 1, "made_at": 0}', "[" * 9999])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(UsageError, match="is no key"):
        read_join_key(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_join_key(tmp_path / "none")


def test_its_secret_is_in_no_representation(path: Path) -> None:
    key = read_join_key(path)
    assert key.secret not in repr(key)
    assert key.make_pass(0).secret not in repr(key.make_pass(0))
