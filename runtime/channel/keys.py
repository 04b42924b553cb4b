"""Keys of one job: a CURVE pair a role, made at launch and never written down; the public ones are the allow-list."""

from collections.abc import Iterable

import msgspec
import zmq


class Keys(msgspec.Struct, frozen=True):
    """What one role holds: its own pair, and the public key of everyone it may talk to (Z85 text)."""

    public: str
    secret: str
    allowed: dict[str, str]

    def owner(self, public: str) -> str | None:
        """The name that holds this public key, if it is on the list."""
        return next((name for name, key in self.allowed.items() if key == public), None)

    def __repr__(self) -> str:
        return f"Keys({self.public}, allowed={sorted(self.allowed)})"


def make_keys(names: Iterable[str]) -> dict[str, Keys]:
    """A new pair for each name; everyone may talk to everyone on the list."""
    pairs = {name: zmq.curve_keypair() for name in names}
    allowed = {name: public.decode() for name, (public, _) in pairs.items()}
    return {name: Keys(public.decode(), secret.decode(), allowed) for name, (public, secret) in pairs.items()}
