"""A raw client on the simulated network: sends any command, and invalid bytes."""

import asyncio
from typing import Any

from pybroker.simulation.broker import PORT
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_command
from pybroker.wire.message_metadata import build_entry

ANSWER_WITHIN_S = 10.0


class Gone(Exception):
    """The broker closed the connection, or does not answer."""


class RawPeer(asyncio.Protocol):
    def __init__(self) -> None:
        self._decoder = FrameDecoder(128 * 1024 * 1024)
        self._received: list[CommandFrame] = []
        self._news: asyncio.Future[None] | None = None
        self._request_id = 0
        self._transport: Any = None
        self.lost = False

    @classmethod
    async def connect(cls) -> "RawPeer":
        """Raises OSError, Gone."""
        _, peer = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", PORT)
        peer.post(pb.CommandConnect(client_version="raw", protocol_version=21))
        await peer.receive(pb.BaseCommand.CONNECTED)
        return peer

    # -- asyncio's side

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += [e for e in self._decoder.receive(data) if isinstance(e, CommandFrame)]
        for frame in self._received:
            if frame.command.type == pb.BaseCommand.PING:
                self.post(pb.CommandPong())
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- its owner's side

    def write(self, data: bytes) -> None:
        if not self.lost:
            self._transport.write(data)

    def post(self, body: Any, entry: bytes = b"") -> None:
        self.write(encode_command(body, entry))

    def send(self, metadata: pb.MessageMetadata, payload: bytes, **fields: Any) -> None:
        self.post(pb.CommandSend(**fields), build_entry(metadata, payload))

    async def request(self, body: Any) -> Any:
        """The body of the answer, which may be an error."""
        self._request_id += 1
        body.request_id = wanted = self._request_id
        self.post(body)
        return await self._next(lambda answer, _: getattr(answer, "request_id", None) == wanted)

    async def receive(self, *kinds: Any) -> Any:
        return await self._next(lambda _, kind: kind in kinds)

    async def _next(self, wanted: Any) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ANSWER_WITHIN_S
        while True:
            for index, frame in enumerate(self._received):
                body = _body(frame.command)
                if wanted(body, frame.command.type):
                    del self._received[index]
                    return body
            if self.lost or loop.time() >= deadline_s:
                raise Gone("the connection was lost" if self.lost else "no answer came")
            self._news = loop.create_future()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._news
            except TimeoutError:
                raise Gone("no answer came") from None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _body(command: pb.BaseCommand) -> Any:
    for descriptor, value in command.ListFields():
        if descriptor.name != "type":
            return value
    return None
