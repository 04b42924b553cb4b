from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from host_channels import KEYS, Opener

from cutset.runtime.channel.zmq_channel import ZmqChannel


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens channels by name, which are closed after the test."""
    with ExitStack() as stack:
        yield lambda name, **more: stack.enter_context(ZmqChannel(name, "job", **({"keys": KEYS.get(name)} | more)))
