"""Deduplication's snapshot, so that recovery reads only the newest entries.

One value: a position, and for each producer the durable part of its sequence ids. The position is
captured first and the producers after it, a few at a time. So a producer's data may include ids
from entries after the position. The scan from there finds them again, and the last statement about
an id counts.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.position import Position
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import TxnId
from pybroker.broker.deduplication.producer_sequence import NO_CHUNK, Chunk, ProducerSequence
from pybroker.broker.deduplication.sequence_ranges import SequenceRanges

_FORMAT: Final = 2
_JSON: Final = b"{"  # the first byte of the oldest format
SNAPSHOTS: Final = "/deduplication/"


def snapshot_keys(metadata: MetadataStore, ledger_name: str) -> list[str]:
    """The key of a topic's snapshot, which may not exist."""
    return [SNAPSHOTS + ledger_name]


def ledgers_with_snapshots(metadata: MetadataStore) -> list[str]:
    return [key.removeprefix(SNAPSHOTS) for key in metadata.keys(SNAPSHOTS)]


async def forget(metadata: MetadataStore, ledger_name: str) -> None:
    """Durable when this returns; does nothing if there is no snapshot."""
    for key in snapshot_keys(metadata, ledger_name):
        if metadata.get(key) is not None:
            await metadata.delete(key)


def encode_head(position: Position) -> bytes:
    """The snapshot's beginning: the next entry to scan. `encode_producer` for each producer
    follows.
    """
    out = Writer()
    out.number(_FORMAT)
    out.number(position.ledger_id + 1)
    out.number(position.entry_id + 1)
    return out.getvalue()


def encode_producer(name: str, state: ProducerSequence) -> bytes:
    """The state as it would be if the broker died now: ids in flight may be sent again. If they
    reach the log after all, the scan finds them, because they are after the position.
    """
    out = Writer()
    out.text(name)
    for number in (state.durable, state.floor, *state.durable_chunk):
        out.number(number + 1)
    _write_txn_id(out, None if state.durable_chunk == NO_CHUNK else state.chunk_txn)
    out.blob(_and_flying(state.returned, state).encode())
    out.number(len(state.open))
    for txn_id, ids in state.open.items():
        _write_txn_id(out, txn_id)
        out.blob(_without_flying(ids, state).encode())
    return out.getvalue()


def _and_flying(ids: SequenceRanges, state: ProducerSequence) -> SequenceRanges:
    if not state.flying:
        return ids
    ids = ids.copy()
    for first, last in state.flying:
        if first <= state.durable:
            ids.add(first, min(last, state.durable))
    return ids


def _without_flying(ids: SequenceRanges, state: ProducerSequence) -> SequenceRanges:
    if not state.flying:
        return ids
    ids = ids.copy()
    for first, last in state.flying:
        ids.take_out(first, last)
    return ids


def decode(value: bytes, key: str) -> tuple[Position, dict[str, ProducerSequence]]:
    """Raises CorruptStorage if the value ends too early, or has an unknown format."""
    if value.startswith(_JSON):
        return _decode_json(json.loads(value))
    data = Reader(value, f"the deduplication snapshot {key!r}")
    data.version(_FORMAT)
    position = Position(data.number() - 1, data.number() - 1)
    return position, dict(_read_producers(data))


async def undecided(metadata: MetadataStore, ledger_name: str) -> set[TxnId]:
    """The transactions whose ends deduplication did not know when it wrote the snapshot; none if
    there is no snapshot. Raises ManagedLedgerError.
    """
    (key,) = snapshot_keys(metadata, ledger_name)
    await metadata.refresh(key)
    if (stored := metadata.get(key)) is None:
        return set()
    states = decode(stored.value, key)[1].values()
    holders = {txn_id for state in states for txn_id in (*state.open, state.chunk_txn)}
    return {txn_id for txn_id in holders if txn_id is not None}


def durable_ids(value: bytes, key: str) -> tuple[Position, dict[str, int]]:
    """The position, and each producer's last durable id; less work than `decode`. Raises
    CorruptStorage.
    """
    if value.startswith(_JSON):
        position, producers = decode(value, key)
        return position, {name: state.durable for name, state in producers.items()}
    data = Reader(value, f"the deduplication snapshot {key!r}")
    data.version(_FORMAT)
    position, found = Position(data.number() - 1, data.number() - 1), {}
    while not data.at_end:
        name = data.text()
        found[name] = data.number() - 1
        for _ in range(3):  # the floor, and the chunk
            data.number()
        _read_txn_id(data)
        data.blob()
        for _ in range(data.number()):
            _read_txn_id(data)
            data.blob()
    return position, found


def _read_producers(data: Reader) -> Iterator[tuple[str, ProducerSequence]]:
    while not data.at_end:
        name, state = data.text(), ProducerSequence()
        state.top = state.durable = data.number() - 1
        state.floor = data.number() - 1
        state.chunk = state.durable_chunk = Chunk(data.number() - 1, data.number() - 1)
        state.chunk_txn = _read_txn_id(data)
        state.returned = SequenceRanges.decode(data.blob())
        for _ in range(data.number()):
            txn_id = _read_txn_id(data)
            ids = SequenceRanges.decode(data.blob())
            if txn_id is not None and ids:
                state.open[txn_id] = ids
                for first, last in ids:
                    state.in_transactions.add(first, last)
        yield name, state


def _write_txn_id(out: Writer, txn_id: TxnId | None) -> None:
    out.number(txn_id is not None)
    if txn_id is not None:
        out.number(txn_id.most)
        out.number(txn_id.least)


def _read_txn_id(data: Reader) -> TxnId | None:
    return TxnId(data.number(), data.number()) if data.number() else None


def _decode_json(record: dict[str, Any]) -> tuple[Position, dict[str, ProducerSequence]]:
    """The oldest format: it lists an open transaction's messages one by one."""
    producers: dict[str, ProducerSequence] = {}
    for name, stored in record["producers"].items():
        state = producers[name] = ProducerSequence()
        state.top = state.durable = stored["highest"]
        state.returned = SequenceRanges(map(tuple, stored["returned"]))
        sequence_id, number = stored["chunk"]
        if number >= 0 and sequence_id > state.top:
            state.chunk = state.durable_chunk = Chunk(sequence_id, number)
    for most, least, carried in record["open"]:
        for name, (first, last, chunk, chunks) in carried:
            _carry(producers[name], TxnId(most, least), (first, last), chunk + 1 >= chunks)
    return Position(*record["next"]), producers


def _carry(state: ProducerSequence, txn_id: TxnId, span: tuple[int, int], complete: bool) -> None:
    if not complete:
        if state.chunk.sequence_id == span[0]:
            state.chunk_txn = txn_id
    elif span[1] <= state.durable:  # otherwise it was in flight
        state.open.setdefault(txn_id, SequenceRanges()).add(*span)
        state.in_transactions.add(*span)
