"""A connection of Kafka's protocol on the simulated network: what a seed needs of a client.

It is no client library: it decides nothing on its own. What it sends, how often, and what it makes
of an answer is up to the processes, so zombies and late requests can be had from it. It speaks the
codec of pybroker/kafka, which tests/kafka compares with the official clients.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from pybroker.client.errors import PulsarException
from pybroker.kafka.codec.messages import Header, decode_response, encode_request
from pybroker.simulation.broker import KAFKA_PORT

ANSWER_WITHIN_S: Final = 10.0
_SIZE_BYTES: Final = 4
Body = dict[str, Any]


class KafkaGone(PulsarException):
    """The connection was lost, or no answer came: what was asked may have been done or not.

    Like the errors of this project's client, so that processes begin again after it.
    """


class KafkaPeer(asyncio.Protocol):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._received = bytearray()
        self._asked: deque[tuple[int, int, int, asyncio.Future[Body | None]]] = deque()
        self._transport: Any = None
        self.lost = False

    @classmethod
    async def connect(cls) -> "KafkaPeer":
        """Raises KafkaGone."""
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(cls, "127.0.0.1", KAFKA_PORT)
        except OSError as error:
            raise KafkaGone(str(error)) from error
        return peer

    # -- asyncio's side

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _SIZE_BYTES:
            end = _SIZE_BYTES + int.from_bytes(self._received[:_SIZE_BYTES], "big")
            if end > len(self._received):
                return
            self._answered(bytes(self._received[_SIZE_BYTES:end]))
            del self._received[:end]

    def _answered(self, frame: bytes) -> None:
        key, version, number, answer = self._asked.popleft()
        correlation_id, body = decode_response(key, version, frame)
        assert correlation_id == number, "answers come in the order of the requests"
        if not answer.done():
            answer.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        for *_, answer in self._asked:
            if not answer.done():
                answer.set_result(None)

    # -- its owner's side

    def post(
        self, key: int, version: int, body: Mapping[str, Any]
    ) -> "asyncio.Future[Body | None]":
        """Sends a request; `answer_of` waits for its answer."""
        header = Header(key, version, next(self._numbers), "simulated")
        answer = asyncio.get_running_loop().create_future()
        if self.lost:
            answer.set_result(None)
            return answer
        self._asked.append((key, version, header.correlation_id, answer))
        frame = encode_request(header, body)
        self._transport.write(len(frame).to_bytes(_SIZE_BYTES, "big") + frame)
        return answer

    async def answer_of(
        self, answer: "asyncio.Future[Body | None]", within_s: float = ANSWER_WITHIN_S
    ) -> Body:
        """Raises KafkaGone, and then the connection is of no use any more."""
        try:
            async with asyncio.timeout(within_s):
                body = await answer
        except TimeoutError:
            body = None
        if body is None:
            self.close()
            raise KafkaGone("the connection was lost" if self.lost else "no answer came")
        return body

    async def ask(self, key: int, version: int, body: Mapping[str, Any]) -> Body:
        """Raises KafkaGone."""
        return await self.answer_of(self.post(key, version, body))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class KafkaClient:
    """The connection of a process, made again when it was lost."""

    def __init__(self) -> None:
        self._peer: KafkaPeer | None = None

    async def peer(self) -> KafkaPeer:
        """Raises KafkaGone."""
        if self._peer is None or self._peer.lost:
            self._peer = await KafkaPeer.connect()
        return self._peer

    async def ask(self, key: int, version: int, body: Mapping[str, Any]) -> Body:
        """Raises KafkaGone; the next request connects again."""
        peer = await self.peer()
        try:
            return await peer.ask(key, version, body)
        except KafkaGone:
            self._peer = None
            raise

    async def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
