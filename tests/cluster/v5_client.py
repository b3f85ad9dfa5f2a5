"""A client in the simulated world that sends commands of the V5 SDK, and reads what comes."""

import asyncio
from typing import Any

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame

_T = pb.BaseCommand
_ANSWER_S = 60.0


class V5Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder(5 * 1024 * 1024)
        self._received: list[pb.BaseCommand] = []
        self._request_id = 0

    @classmethod
    async def open(cls, url: str) -> "V5Connection":
        host, port = url.removeprefix("pulsar://").rsplit(":", 1)
        made = cls(*await asyncio.open_connection(host, int(port)))
        made.send(
            _T.CONNECT, "connect", pb.CommandConnect(client_version="v5", protocol_version=21)
        )
        await made.receive("connected")
        return made

    def send(self, kind: Any, field: str, body: Any) -> None:
        command = pb.BaseCommand(type=kind)
        getattr(command, field).CopyFrom(body)
        self._writer.write(encode_frame(command))

    async def request(self, kind: Any, field: str, body: Any, answer: str) -> Any:
        self._request_id += 1
        body.request_id = self._request_id
        self.send(kind, field, body)
        return await self.receive(answer)

    async def receive(self, field: str) -> Any:
        """The body of the next command that has this field."""
        async with asyncio.timeout(_ANSWER_S):
            while True:
                for index, command in enumerate(self._received):
                    if command.HasField(field):
                        return getattr(self._received.pop(index), field)
                await self._read()

    async def closed(self) -> None:
        """Return when the broker has closed the connection."""
        async with asyncio.timeout(_ANSWER_S):
            while True:
                try:
                    await self._read()
                except ConnectionError:
                    return

    async def _read(self) -> None:
        data = await self._reader.read(65536)
        if not data:
            raise ConnectionError("the broker closed the connection")
        for event in self._decoder.receive(data):
            assert isinstance(event, CommandFrame)
            if event.command.type == _T.PING:
                self.send(_T.PONG, "pong", pb.CommandPong())
            else:
                self._received.append(event.command)

    # -- the SDK's commands

    async def layout(self, topic: str) -> Any:
        asked = pb.CommandScalableTopicLookup(session_id=1, topic=topic)
        self.send(_T.SCALABLE_TOPIC_LOOKUP, "scalableTopicLookup", asked)
        return await self.next_layout()

    async def next_layout(self) -> Any:
        update = await self.receive("scalableTopicUpdate")
        assert not update.HasField("error"), update
        update.dag.controller_broker_url = _as_known(update.dag.controller_broker_url)
        return update.dag

    async def join(
        self, topic: str, name: str, consumer_id: int = 1, subscription: str = "s"
    ) -> Any:
        asked = pb.CommandScalableTopicSubscribe(
            topic=topic,
            subscription=subscription,
            consumer_name=name,
            consumer_id=consumer_id,
            consumer_type=pb.STREAM,
        )
        kind, field = _T.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe"
        return await self.request(kind, field, asked, "scalableTopicSubscribeResponse")

    async def places(self) -> dict[int, str]:
        """The broker of each coordinator."""
        asked = pb.CommandWatchTcAssignments(watch_id=1)
        self.send(_T.WATCH_TC_ASSIGNMENTS, "watchTcAssignments", asked)
        return await self.next_places()

    async def next_places(self) -> dict[int, str]:
        update = await self.receive("watchTcAssignmentsUpdate")
        assert not update.HasField("error"), update
        places = update.snapshot.assignments
        return {each.tc_id: _as_known(each.broker_service_url) for each in places}

    async def connect_coordinator(self, tc_id: int) -> Any:
        asked = pb.CommandTcClientConnectRequest(tc_id=tc_id, scalable=True)
        kind, field = _T.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest"
        return await self.request(kind, field, asked, "tcClientConnectResponse")


def _as_known(url: str) -> str:
    """As the brokers of the simulated world are called."""
    return url.replace("localhost", "127.0.0.1")
