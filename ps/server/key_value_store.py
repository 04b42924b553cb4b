"""`KeyValueStore`: a store at a shard through which workers find each other, with the set and get of a dist.Store."""

from collections import defaultdict

from ...runtime.channel.message import Message

MAX_KEYS = 1 << 12


class KeyValueStore:
    """Values by key, and the clients that wait for a key. Pure: messages in, replies out."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[str]] = defaultdict(list)

    def set(self, message: Message) -> list[tuple[str, Message]]:
        """Store {key, value} unless the key has a value. Return the replies to the clients that wait for it.

        ValueError if the value is not bytes, or there are too many keys.
        """
        key, value = _key_of(message), message.body.get("value")
        if not isinstance(value, bytes) or len(self._values) == MAX_KEYS:
            raise ValueError(f"sets {value!r} beside {len(self._values)} other keys; {MAX_KEYS} values of bytes fit")
        self._values.setdefault(key, value)
        return [self._reply(client, key, message.edge) for client in self._waiting.pop(key, [])]

    def get(self, message: Message) -> list[tuple[str, Message]]:
        """Return the reply with the value of {key}, or nothing until it is set. ValueError if there is no key."""
        key = _key_of(message)
        if key in self._values:
            return [self._reply(message.sender, key, message.edge)]
        self._waiting[key].append(message.sender)
        return []

    def _reply(self, client: str, key: str, edge: int) -> tuple[str, Message]:
        return client, Message("store_value", edge=edge, body={"key": key, "value": self._values[key]})

    def __repr__(self) -> str:
        return f"KeyValueStore({len(self._values)} keys, awaited={sorted(self._waiting)})"


def _key_of(message: Message) -> str:
    key = message.body.get("key")
    if not isinstance(key, str):
        raise ValueError(f"has the key {key!r}, which is not a string")
    return key
