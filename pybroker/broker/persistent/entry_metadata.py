"""Broker entry metadata: when the broker received an entry, and the index of its last message.

An entry is stored after `[0x0e02 u16][size u32][BrokerEntryMetadata]`. Clients that support this
metadata and may see it receive the entry with it, others without it. A topic that has ever stored
such entries records that in its ledger's properties. Indexes count messages and are never reused:
the last entry has the last index, and when entries are deleted or a new ledger begins, the write of
the list of ledgers also records the last index. A failed write leaves a gap. A topic that Kafka's
clients use always has indexes: they are the offsets, from the point in the log where those clients
came. Its entries may be RecordBatches, which readers of Pulsar's get as messages.
Source: PIP-70; AppendIndexMetadataInterceptor, AppendBrokerTimestampMetadataInterceptor.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock, Pace
from pybroker.wire.message_metadata import (
    BadEntry,
    broker_index_of,
    with_broker_metadata,
    without_broker_metadata,
)

_PACKAGE: Final = "org.apache.pulsar.common.intercept."
TIMESTAMP: Final = _PACKAGE + "AppendBrokerTimestampMetadataInterceptor"
INDEX: Final = _PACKAGE + "AppendIndexMetadataInterceptor"
STAMPED: Final = "broker-entry-metadata"  # a property: the last index known for sure
OFFSETS: Final = "kafka-offsets"  # a property of topics that Kafka's clients use
_READS_A_TURN: Final = 200
_LOOKED_AT: Final = 1000  # entries, in search of the last one with an index
_FAR: Final = 1 << 32  # more than a topic can have written since the last record


class BadInterceptors(ValueError):
    """The message names the key and says what to do."""


def check_interceptors(config: BrokerConfig) -> None:
    """Raises BadInterceptors for a name that is neither TIMESTAMP nor INDEX."""
    for name in config.broker_entry_metadata_interceptors:
        if name not in (TIMESTAMP, INDEX):
            raise BadInterceptors(
                f"brokerEntryMetadataInterceptors: {name[:200]} is not supported; choose from "
                f"{TIMESTAMP} and {INDEX}"
            )


class EntryStamps:
    """Implements managed_ledger.interceptor.Interceptor."""

    def __init__(self, clock: Clock | None, index: int | None, of_kafka: bool = False) -> None:
        """No timestamps without a clock; no indexes without the last `index`."""
        self.clock = clock
        self.index = index
        self.of_kafka = of_kafka

    def shown_at_once(self, run: EntryRun) -> EntryRun | None:
        if not self.of_kafka:
            return run
        from pybroker.kafka.conversion.converted import first_for_pulsar

        entries = first_for_pulsar(run.entries)
        counts = run.message_counts[: len(entries)]
        return replace(run, entries=entries, message_counts=counts) if entries else None

    async def shown(self, run: EntryRun) -> EntryRun:
        if not self.of_kafka:
            return run
        from pybroker.kafka.conversion.converted import all_for_pulsar

        return replace(run, entries=await all_for_pulsar(run.entries))

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> list[bytes]:
        now_ms = None if self.clock is None else self.clock.now_ms()
        if self.index is None:
            return [with_broker_metadata(entry, now_ms, None) for entry in entries]
        indexes = list(accumulate(message_counts, initial=self.index))
        self.index = indexes[-1]
        return [
            with_broker_metadata(entry, now_ms, index)
            for entry, index in zip(entries, indexes[1:], strict=True)
        ]

    def properties(self) -> Mapping[str, str]:
        return {} if self.index is None else {STAMPED: str(self.index)}


async def stamping(ledger: ManagedLedger, config: BrokerConfig, clock: Clock) -> None:
    """If configured, or if Kafka's clients use the topic, the ledger stamps entries that are
    appended from now on.
    """
    wanted = config.broker_entry_metadata_interceptors
    of_kafka = has_offsets(ledger)
    if wanted or of_kafka:
        if not is_stamped(ledger):
            await ledger.set_property(STAMPED, "-1")
        index = await _last_index(ledger) if INDEX in wanted or of_kafka else None
        ledger.interceptor = EntryStamps(clock if TIMESTAMP in wanted else None, index, of_kafka)


def is_stamped(ledger: ManagedLedger) -> bool:
    """Whether there may be entries with broker entry metadata."""
    return STAMPED in ledger.properties


def has_offsets(ledger: ManagedLedger) -> bool:
    """Whether Kafka's clients use or used the topic."""
    return OFFSETS in ledger.properties


def cached_for_clients(
    ledger: ManagedLedger, position: Position, up_to: Position, max_entries: int, max_bytes: int
) -> EntryRun | None:
    """Entries from memory as Pulsar's clients get them; None if there are none, or if they would
    take too long: see `read_for_clients`.
    """
    run = ledger.read_cached(position, up_to, max_entries, max_bytes)
    if run is None or ledger.interceptor is None:
        return run
    return ledger.interceptor.shown_at_once(run)


async def read_for_clients(
    ledger: ManagedLedger, position: Position, up_to: Position, max_entries: int, max_bytes: int
) -> EntryRun | None:
    """As ManagedLedger.read, with the metadata that interceptors added. Raises ManagedLedgerError
    if the entries cannot be read.
    """
    run = await ledger.read(position, up_to, max_entries, max_bytes)
    if run is None or ledger.interceptor is None:
        return run
    return await ledger.interceptor.shown(run)


async def shown_entry(ledger: ManagedLedger, position: Position, entry: bytes) -> bytes:
    """The entry as Pulsar's clients get it."""
    if ledger.interceptor is None:
        return entry
    shown = await ledger.interceptor.shown(EntryRun(*position, [entry], [1]))
    return shown.entries[0]


async def entry_with_index(ledger: ManagedLedger, index: int) -> Position | None:
    """The first entry whose last message has this index or a higher one; None if there is none yet.

    Indexes grow from entry to entry. All entries of a ledger have an index, or none has one: each
    start of the broker, and so each configuration, begins a new ledger.
    """
    pace = Pace(_READS_A_TURN)
    infos = []
    for info in ledger.ledgers():
        await pace.step()  # reads from memory do not yield
        if info.entries and await _index_at(ledger, Position(info.ledger_id, 0)) is not None:
            infos.append(info)
    stops = list(accumulate(info.entries for info in infos))

    def position_of(at: int) -> Position:
        which = bisect_right(stops, at)
        return Position(infos[which].ledger_id, at - stops[which] + infos[which].entries)

    low, high = 0, sum(info.entries for info in infos)
    while low < high:
        middle = (low + high) // 2
        found = await _index_at(ledger, position_of(middle))
        if found is None or found < index:
            low = middle + 1
        else:
            high = middle
    return position_of(low) if stops and low < stops[-1] else None


async def _last_index(ledger: ManagedLedger) -> int:
    noted = int(ledger.properties[STAMPED])
    position = ledger.last_confirmed
    for _ in range(_LOOKED_AT):
        if position.entry_id < 0:
            return noted  # no entry is left
        index = await _index_at(ledger, position)
        if index is not None:
            return max(noted, index)
        if has_offsets(ledger):
            return noted  # Kafka's clients came after this entry
        position = ledger.previous_position(position)
    return noted + _FAR


async def _index_at(ledger: ManagedLedger, position: Position) -> int | None:
    try:
        run = await ledger.read(position, position, 1, 1)
        return None if run is None else broker_index_of(run.entries[0])
    except (ManagedLedgerError, BadEntry):
        return None


def plain(entries: Sequence[bytes]) -> list[bytes]:
    """The entries without broker entry metadata, for clients that do not support it."""
    return [without_broker_metadata(entry) for entry in entries]
