"""One connection over a recording transport: keep-alive, brakes, the end."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from managed_ledger.errors import StorageFull
from pybroker.base.configuration.config import BrokerConfig
from pybroker.server.connections import requests as requests_module
from pybroker.server.connections.frame_budget import FrameBudget
from pybroker.server.connections.outbox import Outboxes
from pybroker.server.connections.requests import as_answer
from pybroker.server.connections.session import Session
from pybroker.server.handlers import HANDLERS
from pybroker.server.publishing.publish_budget import PublishBudget
from pybroker.server.services import Services
from pybroker.server.transactions.disconnections import Disconnections
from pybroker.transaction.coordinator.joining import Joining
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.connection_state import ConnectionState
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame

_T = pb.BaseCommand
CONNECT = encode_frame(_T(type=_T.CONNECT, connect=pb.CommandConnect(client_version="test")))


class NotingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = False
        self.unread_bytes = 0  # by the peer, of what was written
        self.ended = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 6650)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self.ended.set()

    abort = close

    def commands(self) -> list[int]:
        decoder = FrameDecoder(5_000_000)
        frames = decoder.receive(self.written)
        return [frame.command.type for frame in frames if isinstance(frame, CommandFrame)]


class Connection:
    def __init__(self, topics: Any = None, **config: Any) -> None:
        settings = BrokerConfig(**config)
        self.budget = PublishBudget(settings.max_pending_publish_bytes)
        frames = FrameBudget(settings.max_pending_frame_bytes)
        outboxes = Outboxes(settings.max_pending_delivery_bytes)
        services = Services(
            topics,
            SimpleNamespace(are_shared=False),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            settings,
            self.budget,
            frames,
            outboxes,
            Disconnections(None, None),  # type: ignore[arg-type]
        )
        self.session = Session(services, HANDLERS, lambda *_: True, lambda _: None, lambda _: None)
        self.transport = NotingTransport()
        self.session.connection_made(self.transport)

    def receives(self, data: bytes) -> None:
        self.session.get_buffer(-1)[: len(data)] = data
        self.session.buffer_updated(len(data))


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def written(connection: Connection) -> list[int]:
    """The commands written by the end of this tick."""
    await asyncio.sleep(0)
    return connection.transport.commands()


# -- handshake, keep-alive


def test_without_connect_in_time_it_is_closed() -> None:
    async def scenario() -> None:
        connection = Connection(handshake_timeout_ms=1)
        await connection.transport.ended.wait()
        assert connection.session.state is ConnectionState.CLOSED

    run(scenario)


def test_silence_is_asked_about_once_and_then_ends_the_connection() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        for _ in range(2):
            connection.session.check_alive()
        assert await written(connection) == [_T.CONNECTED, _T.PING]
        assert not connection.transport.closed
        connection.session.check_alive()
        assert connection.transport.closed

    run(scenario)


def test_who_is_not_read_is_not_silent() -> None:
    async def scenario() -> None:
        others, connection = (Connection(max_pending_frame_bytes=100_000) for _ in range(2))
        others.session.services.frames.take(100_000, lambda: None, "")
        connection.session._inbox._frames = others.session.services.frames
        connection.receives(CONNECT)
        connection.receives((100_000).to_bytes(4, "big") + (10).to_bytes(4, "big"))
        for _ in range(10):
            connection.session.check_alive()
        assert await written(connection) == [_T.CONNECTED]
        assert not connection.transport.closed

    run(scenario)


def test_a_peer_that_does_not_read_is_silent_although_commands_of_it_wait() -> None:
    """They wait until it reads. It may be gone: a consumer of it would block an Exclusive one."""

    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        connection.session.pause_writing()
        connection.receives(commands.PING * 3)
        for _ in range(3):
            assert not connection.transport.closed
            connection.session.check_alive()
        assert connection.transport.closed

    run(scenario)


def test_a_peer_that_reads_slowly_is_not_silent() -> None:
    """The broker does not read its bytes meanwhile, an answer to a PING among them."""

    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        connection.session.write(commands.PONG * 100)
        await written(connection)
        connection.transport.unread_bytes = 100 * len(commands.PONG)
        connection.session.pause_writing()
        for _ in range(10):
            connection.session.check_alive()
            connection.transport.unread_bytes -= 1
        assert not connection.transport.closed
        for _ in range(4):
            connection.session.check_alive()
        assert connection.transport.closed, "it reads no more"

    run(scenario)


def test_any_byte_is_a_sign_of_life() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        for _ in range(10):
            connection.session.check_alive()
            connection.receives(commands.PONG)
        assert await written(connection) == [_T.CONNECTED]
        assert not connection.transport.closed

    run(scenario)


def test_what_one_tick_writes_goes_out_in_one_piece() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        connection.receives(commands.PING * 3)
        assert connection.transport.written == b""
        assert await written(connection) == [_T.CONNECTED, _T.PONG, _T.PONG, _T.PONG]

    run(scenario)


def test_a_frame_that_does_not_come_to_its_end_is_given_up() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        connection.receives((100_000).to_bytes(4, "big") + (10).to_bytes(4, "big"))
        for _ in range(3):
            assert not connection.transport.closed
            connection.receives(b"x")
            connection.session.check_alive()
        assert connection.transport.closed

    run(scenario)


def test_frames_that_come_one_after_the_other_take_as_long_as_they_like() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        for _ in range(10):
            connection.receives(commands.PING[:9])
            connection.session.check_alive()
            connection.receives(commands.PING[9:])
        assert not connection.transport.closed

    run(scenario)


# -- brakes


def test_it_stops_reading_over_the_publish_budget_and_goes_on_below_half() -> None:
    async def scenario() -> None:
        connection = Connection(max_pending_publish_bytes=100)
        connection.session.spend_budget(100)
        assert connection.transport.reading
        connection.session.spend_budget(1)
        assert not connection.transport.reading
        connection.budget.give_back(50)
        assert not connection.transport.reading
        connection.budget.give_back(1)
        assert connection.transport.reading

    run(scenario)


def test_it_stops_reading_from_a_peer_that_does_not_read() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.session.pause_writing()
        assert not connection.transport.reading
        assert not connection.session.writable
        connection.session.resume_writing()
        assert connection.transport.reading

    run(scenario)


def test_reading_goes_on_when_every_reason_to_stop_is_gone() -> None:
    async def scenario() -> None:
        connection = Connection(max_pending_publish_bytes=100)
        connection.session.pause_writing()
        connection.session.spend_budget(101)
        connection.session.resume_writing()
        assert not connection.transport.reading
        connection.budget.give_back(101)
        assert connection.transport.reading

    run(scenario)


class StuckTopics:
    """Does not answer until `release`."""

    def __init__(self) -> None:
        self.release, self.name = asyncio.Event(), "s"

    async def partitions_for_client(self, *_: Any) -> int:
        await self.release.wait()
        return 0


def question(number: int) -> bytes:
    asked = pb.CommandPartitionedTopicMetadata(topic="t", request_id=number)
    return encode_frame(_T(type=_T.PARTITIONED_METADATA, partitionMetadata=asked))


def test_it_stops_reading_while_too_many_requests_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "MAX_AT_HAND", 10)

    async def scenario() -> None:
        topics = StuckTopics()
        connection = Connection(topics)
        connection.receives(CONNECT)
        connection.receives(b"".join(map(question, range(9))))
        assert connection.transport.reading
        connection.receives(question(9))
        assert not connection.transport.reading
        topics.release.set()
        await connection.session.requests.ended()
        assert connection.transport.reading
        answers = (await written(connection)).count(_T.PARTITIONED_METADATA_RESPONSE)
        assert answers == 10

    run(scenario)


def test_what_the_storage_says_is_told_as_it_is_and_what_nobody_foresaw_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = as_answer(StorageFull("the disk is full: free some"))
    assert (str(told), told.code) == ("the disk is full: free some", pb.ServiceNotReady)
    assert [record.exc_info for record in caplog.records] == [None]
    caplog.clear()
    assert "KeyError('x')" in str(as_answer(KeyError("x")))
    assert caplog.records[0].exc_info is not None


class StuckSubscription:
    """Acknowledgements in transactions are not answered until `release`."""

    def __init__(self) -> None:
        self.release, self.name = asyncio.Event(), "s"

    async def acknowledge_in_transaction(self, *_: Any) -> None:
        await self.release.wait()


def test_it_stops_reading_while_long_acknowledgements_in_transactions_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
    ack.txnid_most_bits, ack.txnid_least_bits = 0, 1
    for entry_id in range(100):
        ack.message_id.add(ledgerId=1, entryId=entry_id)
    frame = encode_frame(_T(type=_T.ACK, ack=ack))
    monkeypatch.setattr(requests_module, "_MAX_BYTES_AT_HAND", 2 * len(frame))

    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        subscription = StuckSubscription()
        topic = SimpleNamespace(name=None)
        slot = SimpleNamespace(topic=topic, subscription=subscription, consumer=None)
        joining: Any = SimpleNamespace(joining=Joining({}))  # no coordinator is open
        connection.session.services.coordinators = joining
        connection.session.consumers[1] = slot  # type: ignore[assignment]
        connection.receives(2 * frame)
        assert connection.transport.reading
        connection.receives(frame)
        assert not connection.transport.reading
        subscription.release.set()
        await connection.session.requests.ended()
        assert connection.transport.reading
        assert (await written(connection)).count(_T.ACK_RESPONSE) == 3

    run(scenario)


# -- the end


def test_finishing_answers_what_is_open_and_reads_no_more() -> None:
    async def scenario() -> None:
        topics = StuckTopics()
        connection = Connection(topics)
        connection.receives(CONNECT + question(1))
        finishing = asyncio.ensure_future(connection.session.finish())
        await asyncio.sleep(0)
        assert not connection.transport.reading
        assert not finishing.done()
        topics.release.set()
        await finishing
        assert _T.PARTITIONED_METADATA_RESPONSE in await written(connection)

    run(scenario)


def test_what_is_due_is_written_before_it_closes() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.receives(CONNECT)
        connection.session.close("enough")
        assert connection.transport.commands() == [_T.CONNECTED]
        assert connection.transport.closed

    run(scenario)


def test_a_lost_connection_lets_go_of_the_budget() -> None:
    async def scenario() -> None:
        connection = Connection(max_pending_publish_bytes=100)
        connection.session.spend_budget(101)
        connection.session.connection_lost(None)
        connection.budget.give_back(101)
        assert not connection.transport.reading, "nobody was resumed"
        assert connection.session.ended.done()

    run(scenario)
