"""What each method exchanges, as its own code does."""

import pytest

from cutset.partition.whole_run.exchange import Exchange
from cutset.ps.methods.registry import METHODS, parse_method
from cutset.tools.whole_run.find_exchange import find_exchange


@pytest.mark.parametrize(
    ("text", "exchange"),
    [
        ("downpour", Exchange()),
        ("downpour:fetch=4,push=2,overlap=true", Exchange(1 / 2, 1 / 4, overlaps=True)),
        ("ssp", Exchange(bounded=True)),
        ("sync", Exchange(lock_step=True)),
        ("allreduce", Exchange(lock_step=True, ring=True)),
        ("sync:backups=1", Exchange(lock_step=True, backups=1)),
        ("averaging:every=5", Exchange(1 / 5, 1 / 5, lock_step=True)),
        ("diloco:every=10,overlap=true", Exchange(1 / 10, 1 / 10, overlaps=True, lock_step=True)),
        ("easgd:every=4", Exchange(1 / 4, 1 / 4)),
        ("hogwild", Exchange(0.0, 0.0)),
        ("sandblaster", Exchange(0.0, 0.0)),
    ],
)
def test_what_a_method_exchanges(text: str, exchange: Exchange) -> None:
    assert find_exchange(parse_method(text)) == exchange


def test_every_method_has_one() -> None:
    for name in METHODS:
        assert isinstance(find_exchange(parse_method(name)), Exchange)
