"""Messages from within this process, and their sender: `server/` publishes them for `admin/`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from managed_ledger.position import Position
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName, TxnId


@dataclass(frozen=True, slots=True)
class LocalSender:
    address: tuple[str, int]
    producer_name: str = ""  # the broker generates one if it is empty


@dataclass(frozen=True, slots=True)
class LocalMessage:
    payload: bytes
    key: str | None = None
    key_is_base64: bool = False  # the key encodes bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0
    sequence_id: int | None = None  # None: the one after the producer's last
    deliver_at_ms: int | None = None
    replicate_to: Sequence[str] = ()


@dataclass(slots=True)
class LocalBatch:
    """The messages for one topic, and the outcome of each: its position or an error."""

    topic: TopicName
    messages: list[LocalMessage] = field(default_factory=list)
    outcomes: list[Position | PulsarError] = field(default_factory=list)
    refusal: PulsarError | None = None  # the producer was refused: nothing was sent
    schema_version: bytes = b""
    txn_id: TxnId | None = None  # the topic has joined it
