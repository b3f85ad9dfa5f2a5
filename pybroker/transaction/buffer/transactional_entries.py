"""Tells which transaction a log entry belongs to, by the tag with which the broker appended it.

A tag is stored beside the entries. Entries are stored as they arrived, so the transaction id and
the marker type in an entry's own metadata are the client's, and are ignored. Only two kinds of
entries are recognised by their metadata: those older than tags, up to a position in a property of
the ledger (see `UntaggedSpan`), and those written by Apache Pulsar's broker (FOREIGN).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire.message_metadata import (
    MARKER_TXN_ABORT,
    MARKER_TXN_COMMIT,
    BadEntry,
    marker_entry,
    parse_metadata,
    transaction_of,
)

# Ledger properties, each a position: all entries up to the first are plain; all entries after the
# second have tags.
SINCE: Final = "transactions"
TAGGED_SINCE: Final = "transaction-tags"

_TAG: Final = Struct("<BQQ")  # kind, most and least bits of the transaction
_KINDS: Final = {None: 1, TxnAction.COMMIT: 2, TxnAction.ABORT: 3}
_ACTIONS: Final = {kind: action for action, kind in _KINDS.items()}
FOREIGN: Final = b"\x08"  # the storage's tag for entries that this software did not write
# Deduplication's data about messages follows the kind, or the transaction.
_SENT_PLAIN: Final = 6
_SENT_IN_TRANSACTION: Final = 7

_MARKER_TYPES: Final = {TxnAction.COMMIT: MARKER_TXN_COMMIT, TxnAction.ABORT: MARKER_TXN_ABORT}
_ACTIONS_OF_MARKERS: Final = {marker: action for action, marker in _MARKER_TYPES.items()}


class TransactionalEntries(NamedTuple):
    """Consecutive messages of a transaction or, with an `action`, the marker that ends it."""

    txn_id: TxnId
    action: TxnAction | None
    first: Position
    entry_count: int


class ToldEntries(NamedTuple):
    """The facts recorded about consecutive entries. None: not applicable, or not recorded."""

    txn_id: TxnId | None
    action: TxnAction | None
    sent: bytes | None
    first: Position
    entry_count: int


class EntryTag(NamedTuple):
    txn_id: TxnId | None
    action: TxnAction | None = None
    sent: bytes | None = None


def marker(txn_id: TxnId, action: TxnAction, publish_time_ms: int) -> bytes:
    return marker_entry(txn_id, _MARKER_TYPES[action], publish_time_ms)


def tag_of(txn_id: TxnId, action: TxnAction | None = None) -> bytes:
    """The tag of a transaction's messages or, with an action, of its marker."""
    return _TAG.pack(_KINDS[action], *txn_id)


def with_sent(sent: bytes, tag: bytes = b"") -> bytes:
    """The tag of messages with deduplication's data `sent`. `tag`: that of their transaction, empty
    for plain messages.
    """
    return bytes((_SENT_IN_TRANSACTION if tag else _SENT_PLAIN,)) + tag[1:] + sent


def parse_tag(tag: bytes) -> EntryTag:
    """Raises CorruptStorage for a tag that this version does not know."""
    kind = tag[0]
    if kind in _ACTIONS and len(tag) == _TAG.size:  # nearly always; recovery reads very many
        _, most, least = _TAG.unpack(tag)
        return EntryTag(TxnId(most, least), _ACTIONS[kind])
    if tag == FOREIGN:
        return EntryTag(None)
    if kind == _SENT_PLAIN:
        return EntryTag(None, sent=tag[1:])
    if kind == _SENT_IN_TRANSACTION and len(tag) >= _TAG.size:
        _, most, least = _TAG.unpack_from(tag)
        return EntryTag(TxnId(most, least), sent=tag[_TAG.size :])
    raise CorruptStorage(
        f"An entry carries the tag {tag.hex()}, which this version does not know: run the "
        "version that wrote it"
    )


@dataclass(frozen=True, slots=True)
class UntaggedSpan:
    """The entries after `after`, up to and including `up_to`, are older than tags."""

    after: Position
    up_to: Position

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "UntaggedSpan":
        if SINCE not in properties:
            return cls(EARLIEST, EARLIEST)
        up_to = properties.get(TAGGED_SINCE)
        return cls(parse_position(properties[SINCE]), parse_position(up_to) if up_to else LATEST)

    def __contains__(self, position: Position) -> bool:
        return self.after < position <= self.up_to


def transactional_entries(run: EntryRun, untagged: UntaggedSpan) -> Iterator[TransactionalEntries]:
    """The transactional entries of a run, in order; the others are plain."""
    for txn_id, action, _, first, count in told_entries(run, untagged):
        if txn_id is not None:
            yield TransactionalEntries(txn_id, action, first, count)


def told_entries(run: EntryRun, untagged: UntaggedSpan) -> Iterator[ToldEntries]:
    """The entries of a run about which facts are recorded, in order; the others are plain."""
    end = run.first_entry_id + len(run.entries)
    if Position(run.ledger_id, run.first_entry_id) <= untagged.up_to:
        for position, entry in _entries(run, run.first_entry_id, end):
            if position in untagged:
                yield from _told_by_metadata(position, entry)
    for first, last, tag in run.tags:
        if tag != FOREIGN:
            txn_id, action, sent = parse_tag(tag)
            position = Position(run.ledger_id, first)
            yield ToldEntries(txn_id, action, sent, position, last - first + 1)
            continue
        for position, entry in _entries(run, first, min(last + 1, end)):
            if position not in untagged:
                yield from _told_by_metadata(position, entry)


def _entries(run: EntryRun, first: int, end: int) -> Iterator[tuple[Position, bytes]]:
    for entry_id in range(first, end):
        yield Position(run.ledger_id, entry_id), run.entries[entry_id - run.first_entry_id]


def _told_by_metadata(position: Position, entry: bytes) -> Iterator[ToldEntries]:
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return  # stored as it was sent; it names no transaction
    txn_id = transaction_of(metadata)
    if txn_id is not None:
        action = _ACTIONS_OF_MARKERS.get(metadata.marker_type)
        yield ToldEntries(txn_id, action, None, position, 1)


def position_text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


def parse_position(text: str) -> Position:
    ledger_id, _, entry_id = text.partition(":")
    return Position(int(ledger_id), int(entry_id))
