"""A reader: a consumer without a durable cursor, which keeps its own position."""

from pybroker.client.closing import Closing
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.messages import Message, MessageId


class Reader(Closing):
    """Created by Client.create_reader."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def topic(self) -> str:
        return self.consumer.topic()

    def is_connected(self) -> bool:
        return self.consumer.is_connected()

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        return await self.consumer.receive(timeout_millis)

    async def batch_read(
        self, max_messages: int, timeout_millis: int | None = None
    ) -> list[Message]:
        """Waits for a message, then returns all that are queued; empty if none came in time."""
        return await self.consumer.take(max_messages, timeout_millis)

    async def has_message_available(self) -> bool:
        """False after the last message that can be delivered now."""
        return await self.consumer.has_more()

    async def get_last_message_id(self) -> MessageId:
        """The last message of the topic that can be delivered; entry id -1 if there is none."""
        return await self.consumer.get_last_message_id()

    async def get_backlog(self) -> int:
        """The number of entries that have not been read yet. Differs: not in official clients."""
        return await self.consumer.get_backlog()

    async def seek(self, messageid: MessageId | int) -> None:
        await self.consumer.seek(messageid)

    async def close(self) -> None:
        await self.consumer.close()
