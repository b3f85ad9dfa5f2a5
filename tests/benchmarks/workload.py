"""Common parts of the rows: brokers with fresh data directories, and floods with broker CPU."""

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flood import Acks, Consumer, NoAcks, Publisher, Pump, build_batch, drive, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

_topic_numbers = itertools.count()
_BLOB_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """Equal entries. With `messages` > 1 each entry is a batch."""

    entries: int
    messages: int
    payload_bytes: int
    window: int

    @property
    def payload_mb(self) -> float:
        return self.entries * self.messages * self.payload_bytes / 1e6


@dataclass(frozen=True, slots=True)
class Spent:
    seconds: float
    cpu_s: float

    def rate(self, count: float) -> float:
        return count / self.seconds

    def cpu_us(self, count: float) -> float:
        return self.cpu_s * 1e6 / count


@dataclass(frozen=True, slots=True)
class Bench:
    """`scale` reduces every load for a quick run; `runs` is the number of repetitions."""

    folder: Path
    runs: int
    scale: float
    profiles: Path | None = None

    def broker(self, name: str, *settings: str, kafka: bool = False) -> MeasuredBroker:
        """A broker; `settings` are lines of its configuration file. With `kafka` it serves Kafka's
        clients, too.
        """
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        config = folder / "broker.conf"
        config.write_text("\n".join(settings))
        profile = self.profiles / f"{name}.pstats" if self.profiles else None
        return MeasuredBroker(folder / "data", config, profile, kafka)

    def scaled(self, count: int) -> int:
        """The scaled count, a multiple of 1,000 for acknowledgements by the thousand."""
        return max(1000, int(count * self.scale) // 1000 * 1000)


def new_topic() -> str:
    return f"persistent://public/default/bench-{next(_topic_numbers)}"


def measure(broker: MeasuredBroker, pumps: Sequence[Pump]) -> Spent:
    cpu_before = broker.cpu_s()
    seconds = drive(pumps)
    return Spent(seconds, broker.cpu_s() - cpu_before)


def measured(broker: MeasuredBroker, work: Callable[[], None]) -> Spent:
    cpu_before, started = broker.cpu_s(), time.perf_counter()
    work()
    return Spent(time.perf_counter() - started, broker.cpu_s() - cpu_before)


def publisher(
    broker: MeasuredBroker, topic: str, load: Load, txn_id: TxnId | None = None
) -> Publisher:
    connection = RawConnection(broker.port)
    connection.create_producer(topic, in_txn=txn_id is not None)
    entry = build_batch(load.messages, load.payload_bytes)
    count = max(1, min(load.entries, _BLOB_BYTES // len(entry)))
    frames = send_frames(entry, load.messages, count, txn_id)
    return Publisher(connection, frames, len(frames) // count, load.entries, load.window)


def publish(broker: MeasuredBroker, topic: str, load: Load) -> Spent:
    pump = publisher(broker, topic, load)
    spent = measure(broker, [pump])
    pump.connection.close()
    return spent


def subscribed(broker: MeasuredBroker, topic: str, name: str) -> RawConnection:
    connection = RawConnection(broker.port)
    connection.subscribe(topic, name)
    return connection


def last_position(connection: RawConnection) -> tuple[int, int]:
    """The ledger id and the entry id of the topic's last message."""
    request = pb.CommandGetLastMessageId(consumer_id=1, request_id=connection.next_request_id())
    connection.send(pb.BaseCommand(type=Type.GET_LAST_MESSAGE_ID, getLastMessageId=request))
    answer = connection.wait_for(Type.GET_LAST_MESSAGE_ID_RESPONSE)
    last = answer.getLastMessageIdResponse.last_message_id
    return last.ledgerId, last.entryId


def consume(
    broker: MeasuredBroker, connection: RawConnection, load: Load, acks: Acks | None = None
) -> Spent:
    pump = Consumer(connection, load.entries, load.entries * load.messages, acks or NoAcks())
    spent = measure(broker, [pump])
    connection.close()
    return spent
