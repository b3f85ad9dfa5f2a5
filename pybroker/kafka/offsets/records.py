"""The records of an offsets log, and their bytes: groups, their offsets, transactional producers.

An entry is a format byte, the number of records, and the records. A record is its kind and its
fields, as varints and texts by length; numbers that may be negative are folded.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from pybroker.base.names import TxnId
from pybroker.kafka.groups.values import GroupKind, StoredGroup, StoredMember
from pybroker.kafka.transactions.values import Kept, ProducerKey, StoredProducer
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnAction

_FORMAT: Final = 1


class TopicPartition(NamedTuple):
    topic: str  # as Kafka's clients name it
    partition: int


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset as a client committed it: it may be any number, and go backwards."""

    offset: int
    leader_epoch: int  # -1: the client named none
    metadata: str
    committed_ms: int
    order: int  # of all commits of this log: of two, the later one counts


Offsets = tuple[tuple[TopicPartition, Committed], ...]


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Offsets of a group; with a transaction, they are pending until its end."""

    group: str
    offsets: Offsets
    txn_id: TxnId | None = None


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The end of a transaction in a group."""

    group: str
    txn_id: TxnId
    action: TxnAction


@dataclass(frozen=True, slots=True)
class RemoveRecord:
    """Offsets that were deleted or have expired, with pending ones."""

    group: str
    removed: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    group: str
    stored: StoredGroup


@dataclass(frozen=True, slots=True)
class GoneRecord:
    """The group is deleted, with its offsets."""

    group: str


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Whose group it is: what is stored of it counts in the limit of this user."""

    group: str
    user: str


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A transactional producer; None: its id has expired."""

    id: TransactionalId
    stored: StoredProducer | None


GroupRecords = CommitRecord | EndRecord | RemoveRecord | GroupRecord | GoneRecord | OwnerRecord
Record = GroupRecords | ProducerRecord
Key = str | TransactionalId  # of a group or a producer


def key_of(record: Record) -> Key:
    return record.id if isinstance(record, ProducerRecord) else record.group


class _Kind(enum.IntEnum):
    COMMIT = 0
    PENDING = 1
    END = 2
    REMOVE = 3
    GROUP = 4
    GONE = 5
    PRODUCER = 6
    NO_PRODUCER = 7
    PRODUCER_OF_TWO_PHASES = 8
    OWNER = 9


_KINDS: Final = frozenset(_Kind)


def encode(records: Sequence[Record]) -> bytes:
    out = Writer()
    out.numbers((_FORMAT, len(records)))
    for record in records:
        _write(out, record)
    return out.getvalue()


def decode(entry: bytes, source: str) -> list[Record]:
    """Raises CorruptStorage for a cut entry or an unknown format."""
    data = Reader(entry, source)
    data.version(_FORMAT)
    return [_read(data, source) for _ in range(data.number())]


def weight(record: Record) -> int:
    """The number of parts in the record."""
    match record:
        case CommitRecord():
            return len(record.offsets)
        case GroupRecord():
            return 1 + len(record.stored.members)
        case RemoveRecord():
            return len(record.removed)
        case _:
            return 1


def _write(out: Writer, record: Record) -> None:
    match record:
        case CommitRecord(group, offsets, None):
            _head(out, _Kind.COMMIT, group)
            _write_offsets(out, offsets)
        case CommitRecord(group, offsets, TxnId(most, least)):
            _head(out, _Kind.PENDING, group)
            out.numbers((most, least))
            _write_offsets(out, offsets)
        case EndRecord(group, txn_id, action):
            _head(out, _Kind.END, group)
            out.numbers((*txn_id, action))
        case RemoveRecord(group, removed):
            _head(out, _Kind.REMOVE, group)
            out.number(len(removed))
            for each in removed:
                _write_place(out, each)
        case GroupRecord(group, stored):
            _head(out, _Kind.GROUP, group)
            _write_group(out, stored)
        case GoneRecord(group):
            _head(out, _Kind.GONE, group)
        case OwnerRecord(group, user):
            _head(out, _Kind.OWNER, group)
            out.text(user)
        case ProducerRecord(id, None):
            _head(out, _Kind.NO_PRODUCER, id.name)
            _write_owner(out, id)
        case ProducerRecord(id, StoredProducer() as stored):
            _head(out, _kind_of(stored), id.name)
            _write_owner(out, id)
            _write_producer(out, stored)


def _head(out: Writer, kind: _Kind, name: str) -> None:
    out.number(kind)
    out.text(name)


def _read(data: Reader, source: str) -> Record:
    if (number := data.number()) not in _KINDS:
        raise CorruptStorage(
            f"{source} has a record of kind {number}, which this version does not know: run the "
            "version that wrote it"
        )
    group = data.text()
    match _Kind(number):
        case _Kind.COMMIT:
            return CommitRecord(group, _read_offsets(data))
        case _Kind.PENDING:
            txn_id = TxnId(data.number(), data.number())
            return CommitRecord(group, _read_offsets(data), txn_id)
        case _Kind.END:
            most, least, action = data.numbers(3)
            return EndRecord(group, TxnId(most, least), TxnAction(action))
        case _Kind.REMOVE:
            return RemoveRecord(group, tuple(_read_place(data) for _ in range(data.number())))
        case _Kind.GROUP:
            return GroupRecord(group, _read_group(data))
        case _Kind.GONE:
            return GoneRecord(group)
        case _Kind.OWNER:
            return OwnerRecord(group, data.text())
        case _Kind.PRODUCER:
            return ProducerRecord(_read_id(data, group), _read_producer(data))
        case _Kind.PRODUCER_OF_TWO_PHASES:
            return ProducerRecord(_read_id(data, group), _read_two_phases(data))
        case _Kind.NO_PRODUCER:
            return ProducerRecord(_read_id(data, group), None)


def _write_place(out: Writer, place: TopicPartition) -> None:
    out.text(place.topic)
    out.number(_folded(place.partition))


def _read_place(data: Reader) -> TopicPartition:
    return TopicPartition(data.text(), _unfolded(data.number()))


def _write_offsets(out: Writer, offsets: Offsets) -> None:
    out.number(len(offsets))
    for place, each in offsets:
        _write_place(out, place)
        out.numbers((_folded(each.offset), _folded(each.leader_epoch)))
        out.text(each.metadata)
        out.numbers((each.committed_ms, each.order))


def _read_offsets(data: Reader) -> Offsets:
    return tuple(_read_offset(data) for _ in range(data.number()))


def _read_offset(data: Reader) -> tuple[TopicPartition, Committed]:
    place = _read_place(data)
    offset, leader_epoch = map(_unfolded, data.numbers(2))
    metadata = data.text()
    committed_ms, order = data.numbers(2)
    return place, Committed(offset, leader_epoch, metadata, committed_ms, order)


def _write_group(out: Writer, stored: StoredGroup) -> None:
    out.numbers((_folded(stored.generation), stored.since_ms, stored.kind))
    for text in (stored.protocol_type, stored.protocol, stored.leader):
        out.text(text)
    out.number(len(stored.members))
    for each in stored.members:
        out.text(each.member_id)
        out.number(each.instance_id is not None)
        for text in (each.instance_id or "", each.client_id, each.client_host):
            out.text(text)
        out.numbers((each.session_timeout_ms, each.rebalance_timeout_ms))
        out.blob(each.metadata)
        out.blob(each.assignment)


def _read_group(data: Reader) -> StoredGroup:
    generation, since_ms, kind = data.numbers(3)
    protocol_type, protocol, leader = data.text(), data.text(), data.text()
    members = tuple(_read_member(data) for _ in range(data.number()))
    return StoredGroup(
        _unfolded(generation),
        protocol_type,
        protocol,
        leader,
        members,
        since_ms,
        GroupKind(kind),
    )


def _read_member(data: Reader) -> StoredMember:
    member_id, is_static = data.text(), data.number()
    instance_id, client_id, client_host = data.text(), data.text(), data.text()
    session_timeout_ms, rebalance_timeout_ms = data.numbers(2)
    return StoredMember(
        member_id,
        instance_id if is_static else None,
        client_id,
        client_host,
        session_timeout_ms,
        rebalance_timeout_ms,
        data.blob(),
        data.blob(),
    )


def _write_owner(out: Writer, id: TransactionalId) -> None:
    out.number(id.owner is not None)
    out.text(id.owner or "")


def _read_id(data: Reader, name: str) -> TransactionalId:
    owned, owner = data.number(), data.text()
    return TransactionalId(owner if owned else None, name)


def _kind_of(stored: StoredProducer) -> _Kind:
    if stored.timeout_ms is None or stored.kept is not None:
        return _Kind.PRODUCER_OF_TWO_PHASES
    return _Kind.PRODUCER


def _write_producer(out: Writer, stored: StoredProducer) -> None:
    out.numbers((*stored.key, stored.session_epoch, stored.timeout_ms or 0))
    txn_id, action = stored.txn_id, stored.last_action
    out.numbers((0, 0, 0) if txn_id is None else (1, *txn_id))
    out.numbers((stored.bumps, 0 if action is None else action + 1))
    out.number(_folded(stored.former_epoch))
    if _kind_of(stored) is _Kind.PRODUCER_OF_TWO_PHASES:
        kept = stored.kept
        out.numbers((0, 0, 0, 0) if kept is None else (1, *kept.key, kept.session_epoch))


def _read_producer(data: Reader) -> StoredProducer:
    producer_id, epoch, session_epoch, timeout_ms = data.numbers(4)
    in_txn, most, least, bumps, action, former = data.numbers(6)
    return StoredProducer(
        ProducerKey(producer_id, epoch),
        session_epoch,
        timeout_ms,
        TxnId(most, least) if in_txn else None,
        bool(bumps),
        TxnAction(action - 1) if action else None,
        _unfolded(former),
    )


def _read_two_phases(data: Reader) -> StoredProducer:
    stored = _read_producer(data)
    is_kept, producer_id, epoch, session_epoch = data.numbers(4)
    kept = Kept(ProducerKey(producer_id, epoch), session_epoch) if is_kept else None
    return replace(stored, timeout_ms=stored.timeout_ms or None, kept=kept)


def _folded(value: int) -> int:
    """Small for numbers near zero of either sign."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unfolded(value: int) -> int:
    return -((value + 1) >> 1) if value & 1 else value >> 1
