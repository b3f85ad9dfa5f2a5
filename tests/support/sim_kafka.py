"""A client of Kafka's protocol in a simulated process: one request at a time."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pybroker.kafka.codec.messages import Header, decode_response, encode_request


class SimKafka:
    """Connected by `open`. A connection that was lost raises OSError or EOFError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, host: str, port: int) -> "SimKafka":
        return cls(*await asyncio.open_connection(host, port))

    async def ask(self, key: int, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        frame = encode_request(Header(key, version, self._number, "sim"), body)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        answered, found = decode_response(key, version, await self._reader.readexactly(size))
        assert answered == self._number
        return found

    def close(self) -> None:
        self._writer.close()
