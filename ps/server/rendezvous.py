"""`Board`: short notes that workers leave for each other at a shard, as where they may be met."""

from collections import defaultdict

from ...runtime.channel.message import Message

NOTES_MOST = 1 << 12


class Board:
    """Notes by key, and who waits for one that is not there yet. Pure: messages in, answers out."""

    def __init__(self) -> None:
        self._notes: dict[str, bytes] = {}
        self._waiting: dict[str, list[str]] = defaultdict(list)

    def note(self, message: Message) -> list[tuple[str, Message]]:
        """Keep {key, value}, where there is none of that key; the answers to those that wait for it.

        ValueError where it is no note, or there are too many.
        """
        key, value = _key(message), message.body.get("value")
        if not isinstance(value, bytes) or len(self._notes) == NOTES_MOST:
            raise ValueError(f"has the note {value!r} for {len(self._notes)} others; {NOTES_MOST} texts of bytes fit")
        self._notes.setdefault(key, value)
        return [self._noted(client, key, message.edge) for client in self._waiting.pop(key, [])]

    def ask(self, message: Message) -> list[tuple[str, Message]]:
        """Answer with the note {key}, once there is one. ValueError where no key is named."""
        key = _key(message)
        if key in self._notes:
            return [self._noted(message.sender, key, message.edge)]
        self._waiting[key].append(message.sender)
        return []

    def _noted(self, client: str, key: str, edge: int) -> tuple[str, Message]:
        return client, Message("noted", edge=edge, body={"key": key, "value": self._notes[key]})

    def __repr__(self) -> str:
        return f"Board({len(self._notes)} notes, awaited={sorted(self._waiting)})"


def _key(message: Message) -> str:
    key = message.body.get("key")
    if not isinstance(key, str):
        raise ValueError(f"has the key {key!r}, which is no text")
    return key
