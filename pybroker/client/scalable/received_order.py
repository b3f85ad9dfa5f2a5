"""In which order messages of all segments were received, for acknowledging up to one of them.

What is acknowledged up to a message is, for each segment, the last message that was received
before: not the furthest, because messages that came again may come again once more.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.messages import Message, MessageId

# Not acknowledged. Beyond this number the first are forgotten: an acknowledgement up to a later
# message of the same segment covers them.
MAX_RECEIVED: Final = 100_000

_Key = tuple[Any, ...]
Received = tuple[TopicConsumer, MessageId]


class ReceivedOrder:
    def __init__(self) -> None:
        self._received: deque[Received] = deque()
        self._known: set[_Key] = set()

    def add(self, message: Message) -> None:
        """May run on any thread, in the order of receiving."""
        message_id = message.message_id()
        self._known.add(_key(message_id))
        self._received.append((message.entry.receiver, message_id))
        if len(self._received) > MAX_RECEIVED:
            self._known.discard(_key(self._received.popleft()[1]))

    def take_up_to(self, message: Message | MessageId) -> list[Received]:
        """Removes what was received up to this message; empty if it is not among them."""
        wanted = _key(_id_of(message))
        taken: list[Received] = []
        while wanted in self._known and self._received:
            each = self._received.popleft()
            self._known.discard(_key(each[1]))
            taken.append(each)
        return taken

    def put_back(self, taken: list[Received]) -> None:
        self._known.update(_key(message_id) for _, message_id in taken)
        self._received.extendleft(reversed(taken))

    def has_some_of(self, part: TopicConsumer) -> bool:
        return any(receiver is part for receiver, _ in self._received)

    def clear(self) -> None:
        self._received.clear()
        self._known.clear()


def by_part(taken: list[Received]) -> Mapping[TopicConsumer, list[MessageId]]:
    found: dict[TopicConsumer, list[MessageId]] = {}
    for part, message_id in taken:
        found.setdefault(part, []).append(message_id)
    return found


def _id_of(message: Message | MessageId) -> MessageId:
    return message if isinstance(message, MessageId) else message.message_id()


def _key(message_id: MessageId) -> _Key:
    """Two deliveries of a message are two."""
    return (message_id.given, message_id.topic_name(), *message_id.order_key)
