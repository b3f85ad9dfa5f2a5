"""How a topic comes to have offsets: from then on, each entry has the index of its last message.

Entries that are already there are counted once. They get the offsets before those that new entries
will have; a property of the managed ledger says where each of their ledgers begins:

    kafka-offsets = {"base": 1000, "ledgers": {"7": 0, "12": 640}}

Entries without an index, and those of the ledgers named there whose index is below `base`, are old:
their offsets follow from the message counts in front of them. All others have their index. Without
older entries the current ledger is named: as long as it is the first one, or was empty, nothing was
deleted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.interceptor import Interceptor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.errors import ServiceNotReady
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.entry_metadata import (
    OFFSETS,
    STAMPED,
    TIMESTAMP,
    EntryStamps,
    has_offsets,
    is_stamped,
)
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.retention import KeptMessages

_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 1024 * 1024
_READS_A_TURN: Final = 1
_MOST_COUNTS: Final = 100
_MOST_TURNS: Final = 2000  # that a new ledger is waited for


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """`base`: the first offset that an index says. `ledgers`: the first offset of each ledger with
    older entries, or of the current one; at least one.
    """

    base: int
    ledgers: Mapping[int, int]

    def encode(self) -> str:
        return json.dumps({"base": self.base, "ledgers": self.ledgers})

    @classmethod
    def decode(cls, text: str) -> "OffsetTable":
        found = json.loads(text)
        ledgers = {int(ledger_id): first for ledger_id, first in found["ledgers"].items()}
        return cls(found["base"], ledgers)


class _Counting:
    """Counts the messages that are appended while older ones are being counted."""

    def __init__(self, inner: Interceptor | None) -> None:
        self.inner = inner
        self.messages = 0

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> Sequence[bytes]:
        self.messages += sum(message_counts)
        return entries if self.inner is None else self.inner.stamped(entries, message_counts)

    def shown_at_once(self, run: EntryRun) -> EntryRun:
        return run

    async def shown(self, run: EntryRun) -> EntryRun:
        return run

    def properties(self) -> Mapping[str, str]:
        return {} if self.inner is None else self.inner.properties()


async def offset_table(topic: Topic) -> OffsetTable:
    """The topic's table; made now, if no Kafka client has used the topic before. Durable when this
    returns. Raises ManagedLedgerError, ServiceNotReady.
    """
    ledger = topic.ledger
    if not has_offsets(ledger):
        if not is_stamped(ledger):
            await ledger.set_property(STAMPED, "-1")  # before the first entry with an index
        await _switch_on(topic)
        KeptMessages().follow(topic)
    return OffsetTable.decode(ledger.properties[OFFSETS])


async def _switch_on(topic: Topic) -> None:
    for _ in range(_MOST_COUNTS):
        if await _is_switched_on(topic):
            return
    raise ServiceNotReady(f"{topic.name} cannot be used by Kafka's clients yet: try again")


async def _is_switched_on(topic: Topic) -> bool:
    """False: a new ledger has begun meanwhile, and it is not known behind how many messages."""
    ledger, before = topic.ledger, topic.ledger.interceptor
    current = ledger.ledgers()[-1].ledger_id
    counting = _Counting(before)
    ledger.interceptor = counting
    on_the_way, end = ledger.queued_messages(), ledger.last_confirmed
    try:
        ledgers, stored = await _counted(ledger, end)
        await _no_new_ledger(topic)
        if ledger.ledgers()[-1].ledger_id != current:
            ledger.interceptor = before
            return False
        new = on_the_way + counting.messages
        if stored or new:
            ledgers.setdefault(current, stored)
        await _begin(topic, before, stored + new, ledgers)
    except BaseException:
        ledger.interceptor = before
        raise
    return True


async def _begin(
    topic: Topic, before: Interceptor | None, first: int, ledgers: dict[int, int]
) -> None:
    """From this turn on entries get an index. The table is durable before any of them is."""
    ledger = topic.ledger
    if isinstance(before, EntryStamps) and before.index is not None:
        first = max(first, before.index + 1)
    wants_time = TIMESTAMP in topic.config.broker_entry_metadata_interceptors
    ledger.interceptor = EntryStamps(topic.clock if wants_time else None, first - 1, True)
    table = OffsetTable(first, ledgers or {ledger.ledgers()[-1].ledger_id: first})
    await ledger.update_properties({OFFSETS: table.encode(), STAMPED: str(first - 1)})


async def _counted(ledger: ManagedLedger, end: Position) -> tuple[dict[int, int], int]:
    """The first offset of each ledger, and the number of messages up to `end`."""
    found: dict[int, int] = {}
    messages, position, pace = 0, ledger.first_position, Pace(_READS_A_TURN)
    while run := await ledger.read_whole(position, end, _READ_ENTRIES, _READ_BYTES):
        found.setdefault(run.ledger_id, messages)
        messages += sum(run.message_counts)
        position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        await pace.step()
    return found, messages


async def _no_new_ledger(topic: Topic) -> None:
    """While a ledger is being created, it is not known where the next entry will be."""
    pace = Pace(1)
    for _ in range(_MOST_TURNS):
        if not topic.ledger.holds_appends:
            return
        await pace.turn()
    raise ServiceNotReady(f"{topic.name} cannot be used by Kafka's clients yet: try again")
