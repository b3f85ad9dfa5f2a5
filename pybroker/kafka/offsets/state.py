"""The contents of an offsets log: the offsets of its groups, the pending ones of transactions, and
the groups themselves. `apply` cannot refuse, and recovery calls it, too.

A transaction's offsets become a group's at its commit, unless the group has committed others after
them. Applying records again changes nothing: a snapshot may describe what the log before it has.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from pybroker.base.names import TxnId
from pybroker.kafka.groups.values import StoredGroup
from pybroker.kafka.offsets.records import (
    CommitRecord,
    Committed,
    EndRecord,
    GoneRecord,
    GroupRecord,
    OwnerRecord,
    ProducerRecord,
    Record,
    RemoveRecord,
    TopicPartition,
)
from pybroker.kafka.transactions.values import StoredProducer
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnAction

_OFFSETS_PER_RECORD: Final = 500
_OFFSET_BYTES: Final = 250
_MEMBER_BYTES: Final = 500
_GROUP_BYTES: Final = 1000
_NOTHING: Final[Mapping[TopicPartition, Committed]] = {}


def cost_bytes(place: TopicPartition, offset: Committed) -> int:
    """About what a committed offset takes."""
    return _OFFSET_BYTES + len(place.topic) + len(offset.metadata)


def group_cost_bytes(group: str, stored: StoredGroup) -> int:
    members = sum(
        _MEMBER_BYTES + len(each.metadata) + len(each.assignment) for each in stored.members
    )
    return _GROUP_BYTES + len(group) + len(stored.protocol) + members


class Pending(NamedTuple):
    """A transaction in a group."""

    txn_id: TxnId
    group: str


class OffsetsState:
    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.producers: dict[TransactionalId, StoredProducer] = {}
        self._committed: dict[str, dict[TopicPartition, Committed]] = {}
        self.pending: dict[Pending, dict[TopicPartition, Committed]] = {}
        self._pending_in: dict[str, dict[TxnId, None]] = {}
        self.count = 0  # of committed and pending offsets
        self._sizes: Counter[str] = Counter()  # about what each group takes, in bytes
        self.owners: dict[str, str] = {}  # of groups
        self.bytes_of_user: Counter[str] = Counter()  # in groups that are theirs
        self.size_bytes = 0  # about what all groups take
        self.next_order = 0

    @property
    def record_count(self) -> int:
        """About the parts of a snapshot."""
        return self.count + len(self.groups) + len(self.owners) + len(self.producers)

    def of(self, group: str) -> Mapping[TopicPartition, Committed]:
        return self._committed.get(group, _NOTHING)

    def knows(self, group: str) -> bool:
        return group in self.groups or group in self._committed or group in self._pending_in

    def group_ids(self) -> list[str]:
        """Every group with members, offsets or pending offsets."""
        return list(dict.fromkeys([*self.groups, *self._committed, *self._pending_in]))

    def places(self, group: str) -> set[TopicPartition]:
        """For which the group has offsets, or pending ones."""
        pending = [self.pending[Pending(each, group)] for each in self._pending_in.get(group, ())]
        return set(self.of(group)).union(*pending)

    def is_pending(self, group: str, place: TopicPartition) -> bool:
        """Whether an undecided transaction has committed this offset."""
        of_group = self._pending_in.get(group)
        if of_group is None:
            return False
        return any(place in self.pending[Pending(each, group)] for each in of_group)

    def has_pending(self, group: str) -> bool:
        return group in self._pending_in

    # -- apply

    def apply(self, record: Record) -> None:
        match record:
            case CommitRecord(group, offsets, None):
                self._commit(group, dict(offsets))
            case CommitRecord(group, offsets, TxnId() as txn_id):
                self._hold(Pending(txn_id, group), dict(offsets))
            case EndRecord(group, txn_id, action):
                self._end(Pending(txn_id, group), action)
                self._disown_if_gone(group)
            case RemoveRecord(group, removed):
                self._remove(group, removed)
                self._disown_if_gone(group)
            case GroupRecord(group, stored):
                self._put(group, stored)
            case GoneRecord(group):
                self._forget(group)
                self._disown_if_gone(group)
            case OwnerRecord(group, user):
                self._own(group, user)
            case ProducerRecord(id, None):
                self.producers.pop(id, None)
            case ProducerRecord(id, StoredProducer() as stored):
                self.producers[id] = stored

    def _commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        if not offsets:
            return
        of_group = self._committed.setdefault(group, {})
        for place, each in offsets.items():
            self.next_order = max(self.next_order, each.order + 1)
            known = of_group.get(place)
            if known is None or known.order <= each.order:
                self._count(group, place, known, each)
                of_group[place] = each

    def _count(
        self, group: str, place: TopicPartition, gone: Committed | None, come: Committed | None
    ) -> None:
        if gone is not None:
            self.count -= 1
            self._grow(group, -cost_bytes(place, gone))
        if come is not None:
            self.count += 1
            self._grow(group, cost_bytes(place, come))

    def _grow(self, group: str, by_bytes: int) -> None:
        self.size_bytes += by_bytes
        self._sizes[group] += by_bytes
        if (owner := self.owners.get(group)) is not None:
            self.bytes_of_user[owner] += by_bytes

    def _own(self, group: str, user: str) -> None:
        """The first one stays the owner. A group that is not there has none: a snapshot may name
        the owner of one that has gone since.
        """
        if group not in self.owners and self.knows(group):
            self.owners[group] = user
            self.bytes_of_user[user] += self._sizes[group]

    def _disown_if_gone(self, group: str) -> None:
        if self.knows(group):
            return
        del self._sizes[group]
        if (owner := self.owners.pop(group, None)) is not None and not self.bytes_of_user[owner]:
            del self.bytes_of_user[owner]

    def _hold(self, pending: Pending, offsets: Mapping[TopicPartition, Committed]) -> None:
        if not offsets:
            return
        held = self.pending.setdefault(pending, {})
        self._pending_in.setdefault(pending.group, {})[pending.txn_id] = None
        for place, each in offsets.items():
            self.next_order = max(self.next_order, each.order + 1)
            self._count(pending.group, place, held.get(place), each)
            held[place] = each

    def _end(self, pending: Pending, action: TxnAction) -> None:
        held = self.pending.pop(pending, None)
        if held is None:
            return
        for place, each in held.items():
            self._count(pending.group, place, each, None)
        of_group = self._pending_in[pending.group]
        del of_group[pending.txn_id]
        if not of_group:
            del self._pending_in[pending.group]
        if action is TxnAction.COMMIT:
            self._commit(pending.group, held)

    def _remove(self, group: str, removed: tuple[TopicPartition, ...]) -> None:
        self._drop(group, self._committed.get(group, {}), removed)
        if not self.of(group):
            self._committed.pop(group, None)
        for txn_id in list(self._pending_in.get(group, ())):
            pending = Pending(txn_id, group)
            self._drop(group, self.pending[pending], removed)
            if not self.pending[pending]:
                self._end(pending, TxnAction.ABORT)

    def _drop(
        self,
        group: str,
        offsets: dict[TopicPartition, Committed],
        removed: tuple[TopicPartition, ...],
    ) -> None:
        for place in removed:
            self._count(group, place, offsets.pop(place, None), None)

    def _put(self, group: str, stored: StoredGroup | None) -> None:
        known = self.groups.pop(group, None)
        if known is not None:
            self._grow(group, -group_cost_bytes(group, known))
        if stored is not None:
            self.groups[group] = stored
            self._grow(group, group_cost_bytes(group, stored))

    def _forget(self, group: str) -> None:
        self._put(group, None)
        for place, each in self._committed.pop(group, _NOTHING).items():
            self._count(group, place, each, None)
        for txn_id in list(self._pending_in.get(group, ())):
            self._end(Pending(txn_id, group), TxnAction.ABORT)

    # -- snapshots

    def records(self) -> Iterator[Record]:
        """The live state, each record as it is when it is taken."""
        for group in self.group_ids():
            if (stored := self.groups.get(group)) is not None:
                yield GroupRecord(group, stored)
            places = iter(list(self.of(group)))
            while chunk := list(islice(places, _OFFSETS_PER_RECORD)):
                yield CommitRecord(group, _those(self.of(group), chunk))
        for id in list(self.producers):
            yield ProducerRecord(id, self.producers.get(id))
        for pending in list(self.pending):
            places = iter(list(self.pending.get(pending, ())))
            while chunk := list(islice(places, _OFFSETS_PER_RECORD)):
                held = self.pending.get(pending, _NOTHING)
                yield CommitRecord(pending.group, _those(held, chunk), pending.txn_id)
        for group, user in list(self.owners.items()):
            yield OwnerRecord(group, user)


def _those(
    offsets: Mapping[TopicPartition, Committed], places: list[TopicPartition]
) -> tuple[tuple[TopicPartition, Committed], ...]:
    return tuple((place, offsets[place]) for place in places if place in offsets)
