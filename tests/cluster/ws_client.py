"""A client of the WebSocket API for the simulated world, where no library's sockets work."""

import asyncio
import base64
import json
from typing import Any
from urllib.parse import urlsplit

from txn_cluster import TxnBroker
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, RejectConnection, Request, TextMessage

_READ_BYTES = 65536


class WsClient:
    """Create it with `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ws = WSConnection(ConnectionType.CLIENT)

    @classmethod
    async def open(cls, broker: TxnBroker, path: str) -> "WsClient":
        """`path` is relative to /ws/v2. Raises ConnectionRefusedError with the status."""
        url = urlsplit(broker.http_url)
        client = cls(*await asyncio.open_connection(url.hostname, url.port))
        client._write(client._ws.send(Request(host=url.netloc, target=f"/ws/v2/{path}")))
        event = await client._next()
        if isinstance(event, RejectConnection):
            raise ConnectionRefusedError(event.status_code)
        assert isinstance(event, AcceptConnection), event
        return client

    def _write(self, data: bytes) -> None:
        self._writer.write(data)

    async def _next(self) -> Any:
        while True:
            for event in self._ws.events():
                return event
            self._ws.receive_data(await self._reader.read(_READ_BYTES) or None)

    def say(self, **command: Any) -> None:
        self._write(self._ws.send(TextMessage(data=json.dumps(command))))

    async def hear(self) -> dict[str, Any]:
        """The next message. Raises ConnectionError if there is none any more."""
        text = ""
        while True:
            event = await self._next()
            if isinstance(event, CloseConnection):
                raise ConnectionError(event.code, event.reason)
            assert isinstance(event, TextMessage), event
            text += event.data
            if event.message_finished:
                said: dict[str, Any] = json.loads(text)
                return said

    async def publish(self, payload: bytes, **more: Any) -> None:
        self.say(payload=base64.b64encode(payload).decode(), **more)
        receipt = await self.hear()
        assert receipt["result"] == "ok", receipt

    async def receive(self) -> bytes:
        """The next message, acknowledged."""
        message = await self.hear()
        self.say(messageId=message["messageId"])
        return base64.b64decode(message["payload"])

    def close(self) -> None:
        self._writer.close()
