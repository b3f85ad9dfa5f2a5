"""Acknowledgements that cover messages skipped while a transaction was undecided."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pybroker.base.errors import PulsarError
from pybroker.broker.dispatch.cumulative import _Acknowledged
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.left_out import _Batch
from pybroker.broker.dispatch.life import Life
from pybroker.broker.dispatch.lives import Lives
from pybroker.broker.subscriptions.transactional_acks import TransactionalAcks
from pybroker.server.consuming import on_acknowledge
from pybroker.server.consuming.on_acknowledge import position_of
from pybroker.transaction.pending_acks import records, store
from pybroker.transaction.pending_acks.covered import Covered
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.pending_acks.state import PendingAckState


@contextmanager
def cumulative_ones_kept_from_successors() -> Iterator[None]:
    """Messages that a transaction holds cumulatively are skipped until its end."""
    right = EntryReader._pass_acknowledged

    def pass_acknowledged(self: EntryReader) -> None:
        right(self)
        withheld: Any = self.withheld
        if withheld is not None and (to := withheld.cumulative_position) is not None:
            self.position = max(self.position, to)

    with patch.object(EntryReader, "_pass_acknowledged", pass_acknowledged):
        yield


@contextmanager
def plain_ones_cover_what_is_held() -> Iterator[None]:
    """A plain cumulative acknowledgement covers messages that open transactions hold singly."""

    def acknowledge_up_to(self: TransactionalAcks, ack: Any, *_: Any) -> None:
        self._cursor.mark_delete(ack.position, ack.still_unacked, ack.batch_size)

    with patch.object(TransactionalAcks, "acknowledge_up_to", acknowledge_up_to):
        yield


@contextmanager
def transactions_cover_what_others_hold() -> Iterator[None]:
    """A cumulative acknowledgement in a transaction covers messages that another one holds."""
    with (
        patch.object(PendingAckState, "_held_by_others", lambda *_: {}),
        patch.object(Covered, "spared", lambda *_: {}),
    ):
        yield


@contextmanager
def spared_forgotten_by_the_log() -> Iterator[None]:
    """After a restart a commit covers messages that its cumulative acknowledgement had spared."""
    right = store._read_record

    def read_record(data: Any, source: str) -> Any:
        record = right(data, source)
        if isinstance(record, records.AckRecord):
            return records.AckRecord(record.txn_id, record.cumulative, record.acks)
        return record

    with patch.object(store, "_read_record", read_record):
        yield


@contextmanager
def late_ones_covered_before_they_came() -> Iterator[None]:
    """Messages given back by an abort count as delivered at once."""
    with patch.object(_Acknowledged, "covers", lambda *_: True):
        yield


@contextmanager
def given_back_forgotten_by_an_unload() -> Iterator[None]:
    """A topic that was closed forgets which messages aborted transactions held singly."""
    right = PendingAcks._apply

    def apply(self: PendingAcks, record: Any) -> None:
        if not isinstance(record, records.PassedOverRecord):
            right(self, record)

    with patch.object(PendingAcks, "_apply", apply):
        yield


@contextmanager
def clients_drop_nothing() -> Iterator[None]:
    """The client is assumed to have seen messages that it drops after its cumulative
    acknowledgement.
    """
    with patch.object(_Acknowledged, "may_be_dropped", lambda *_: False):
        yield


@contextmanager
def what_others_consumed_consumed_again() -> Iterator[None]:
    """A consumer's transaction may cover what it was given before another one consumed it."""
    with (
        patch.object(Life, "tainted_by", lambda *_: None),
        patch.object(Covered, "require_unacknowledged", lambda *_: None),
    ):
        yield


@contextmanager
def unclear_ones_spared() -> Iterator[None]:
    """What a client may have received besides what it acknowledges is given again silently."""
    right = _Acknowledged.covers

    def covers(self: _Acknowledged, *of: Any) -> bool:
        return bool(right(self, *of))

    with patch.object(_Acknowledged, "covers", covers):
        yield


@contextmanager
def lives_forgotten_by_an_unload() -> Iterator[None]:
    """After an unload, all clients count as new processes."""
    with patch.object(Lives, "restore", lambda *_: None):
        yield


@contextmanager
def processes_not_told_apart() -> Iterator[None]:
    """A new process continues the life of a dead one whose consumer had the same name, or none."""

    def continued(self: Lives, name: str, consumer_id: int, _: int) -> Life | None:
        namesakes = self._by_name.get((name, consumer_id), ())
        return next((life for life in namesakes if not life.consumers), None)

    with patch.object(Lives, "_continued", continued):
        yield


@contextmanager
def own_commits_are_rivals() -> Iterator[None]:
    """A client's own committed transactions stand in the way of its next one."""
    right = Lives.commits

    def commits(self: Lives, record: records.AckRecord, *of: Any) -> None:
        for life in self:
            if life.holds == record.txn_id:
                life.taint(record.txn_id, (self._first(), 0))
        right(self, record, *of)

    with patch.object(Lives, "commits", commits):
        yield


@contextmanager
def epochs_forgotten_by_an_unload() -> Iterator[None]:
    """After an unload, nobody has dropped what it was given before."""
    right = Lives.restore

    def restore(self: Lives, found: Any, *where: Any) -> None:
        right(self, [replace(record, epoch=None) for record in found], *where)

    with patch.object(Lives, "restore", restore):
        yield


@contextmanager
def the_whole_is_the_latest() -> Iterator[None]:
    """An acknowledgement of a batch that came twice counts for the last delivery."""
    with (
        patch.object(_Batch, "is_clear", property(lambda self: True)),
        patch.object(_Batch, "acknowledged", lambda self: self.left_out),
    ):
        yield


@contextmanager
def acknowledgements_overtake() -> Iterator[None]:
    """The size of a batch is looked up while later acknowledgements go on."""
    in_turns = on_acknowledge._ack_in_turns

    async def later(*what: Any) -> None:
        session, _, command = what
        try:
            await in_turns(*what)
        except PulsarError as error:
            on_acknowledge.ack_failed(session, command, error)

    def apart(session: Any, slot: Any, command: Any) -> None:
        session.requests.start(later(session, slot, command), "ack")

    def known(topic: Any, message_ids: Any) -> Any:
        in_parts = any(each.ack_set for each in message_ids)
        return None if in_parts else [PendingAck(position_of(each)) for each in message_ids]

    with (
        patch.object(on_acknowledge, "_ack_in_turns", apart),
        patch.object(on_acknowledge, "_known_acks", known),
    ):
        yield


BUGS = {
    "acknowledgements-overtake": acknowledgements_overtake,
    "batches-that-come-twice-taken-whole": the_whole_is_the_latest,
    "clients-drop-nothing": clients_drop_nothing,
    "cumulative-ones-kept-from-successors": cumulative_ones_kept_from_successors,
    "epochs-forgotten-by-an-unload": epochs_forgotten_by_an_unload,
    "given-back-forgotten-by-an-unload": given_back_forgotten_by_an_unload,
    "lives-forgotten-by-an-unload": lives_forgotten_by_an_unload,
    "late-ones-covered-before-they-came": late_ones_covered_before_they_came,
    "own-commits-are-rivals": own_commits_are_rivals,
    "plain-ones-cover-what-is-held": plain_ones_cover_what_is_held,
    "processes-not-told-apart": processes_not_told_apart,
    "spared-forgotten-by-the-log": spared_forgotten_by_the_log,
    "unclear-ones-spared": unclear_ones_spared,
    "transactions-cover-what-others-hold": transactions_cover_what_others_hold,
    "what-others-consumed-consumed-again": what_others_consumed_consumed_again,
}
