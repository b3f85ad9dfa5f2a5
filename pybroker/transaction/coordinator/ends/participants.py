"""Tells the participants of a transaction how it ends, until all have ended it.

The coordinator knows participants only by name; `Participants` reaches them, on this broker or on
another. A participant that fails is told again (see repeated_ends), and is listed in `retries`. A
participant that can never end the transaction counts as ended: it holds nothing of the transaction,
and waiting for it would keep the transaction from completing.

A limited number of a transaction's participants are told at a time, so that a transaction with many
participants does not delay everything else.

The first participants are told before the decision is durable: what they append to their logs then
reaches the storage in the same turn, after the decision, and both are in one commit. Participants
that cannot append in that turn are told once the decision is durable.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice, starmap
from typing import Final, NamedTuple, Protocol

from managed_ledger.prompt import when_done
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.transaction.coordinator.ends.repeated_ends import RepeatedEnds
from pybroker.transaction.coordinator.ends.timeline import DecidedEnd
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.this_turn import this_turn
from pybroker.transaction.txn_status import TxnAction

_AT_ONCE: Final = 200  # of one transaction; telling this many takes a few milliseconds
_GIVEN_UP_KEPT: Final = 100

log = logging.getLogger(__name__)


# None: the transaction has ended.
Ending = Awaitable[object] | None


class CannotParticipate(Exception):
    """A name was added to a transaction although it can never be a participant."""


class TransactionEnd(NamedTuple):
    txn_id: TxnId
    action: TxnAction
    low_watermark: int  # the coordinator's: all its transactions up to this local id have ended


class Participants(Protocol):
    """Ends a transaction on the topics and subscriptions that it used. Idempotent. Any error except
    CannotParticipate, raised now or set on the future, leads to a retry.

    None: the transaction has ended there. A deleted topic or subscription counts as ended; one that
    is not loaded is loaded. With `not_later`, an end that cannot be queued in the storage in this
    turn raises, or fails with, WouldWait, and has no effect.
    """

    def end_on_partition(
        self, end: TransactionEnd, topic: str, not_later: bool = False
    ) -> Ending: ...

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, not_later: bool = False
    ) -> Ending: ...


class Participant(NamedTuple):
    topic: str
    subscription: str | None = None  # None: the topic itself

    def __str__(self) -> str:
        suffix = "" if self.subscription is None else f", subscription {self.subscription}"
        return f"{self.topic}{suffix}"


@dataclass(slots=True)
class Retry:
    """A participant that has not ended the transaction yet, or that was given up."""

    txn_id: TxnId
    participant: Participant
    attempts: int
    last_error: str


class ParticipantEnds:
    def __init__(self, participants: Participants, tasks: Tasks, now_ms: Callable[[], int]) -> None:
        self.participants = participants
        self.now_ms = now_ms
        self.tasks = tasks
        self.closed = False
        self._retries: dict[tuple[TxnId, Participant], Retry] = {}
        self._given_up: deque[Retry] = deque(maxlen=_GIVEN_UP_KEPT)
        self._undecided: dict[TxnId, _EndEverywhere] = {}  # told before their decision is durable
        self._numbers = count()
        self.repeated: dict[tuple[Participant, TxnAction], RepeatedEnds] = {}  # usually none

    def retries(self) -> list[Retry]:
        return list(self._retries.values())

    def given_up(self) -> list[Retry]:
        """The participants that were given up most recently."""
        return list(self._given_up)

    def end_everywhere(
        self,
        transaction: TransactionMetadata,
        action: TxnAction,
        low_watermark: int,
        followed: Callable[[], None],
    ) -> None:
        """The decision is durable. `followed` is called when all participants have ended the
        transaction: at once if there is nothing to wait for, and never after `closed` is set.
        """
        end = self._undecided.pop(transaction.txn_id, None)
        if end is None:
            end = _EndEverywhere(self, transaction, action, low_watermark)
        end.decided(followed)

    def begin_everywhere(
        self, transaction: TransactionMetadata, action: TxnAction, low_watermark: int
    ) -> None:
        """The decision is queued in the storage, but not durable. Tell the first participants: what
        they append in this turn is durable only if the decision is. `end_everywhere` continues.
        """
        if not self.closed:
            end = _EndEverywhere(self, transaction, action, low_watermark)
            self._undecided[transaction.txn_id] = end
            end.begin()

    def next_number(self) -> int:
        """Orders the ends by decision."""
        return next(self._numbers)

    def must_queue(self, participant: Participant, action: TxnAction) -> bool:
        """Whether an earlier end has to be repeated first."""
        return (participant, action) in self.repeated

    def repeat(self, end: "_EndAgain") -> None:
        key = end.participant, end.action
        if (queue := self.repeated.get(key)) is not None:
            queue.add(end)
        else:
            queue = self.repeated[key] = RepeatedEnds(end)
            self.tasks.start(self._repeat(key, queue), f"ends of {end.participant} again")

    async def _repeat(self, key: tuple[Participant, TxnAction], queue: RepeatedEnds) -> None:
        try:
            await queue.run()
        finally:
            del self.repeated[key]

    def give_up(self, txn_id: TxnId, participant: Participant, error: Exception) -> None:
        log.error("Transaction %s ends without %s: %s", txn_id, participant, error)
        self._given_up.append(Retry(txn_id, participant, 1, str(error)))

    def note(self, txn_id: TxnId, participant: Participant, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        retry = self._retries.setdefault(
            (txn_id, participant), Retry(txn_id, participant, 0, reason)
        )
        if retry.attempts == 0:
            log.warning(
                "Transaction %s: %s has not ended it yet (%s); retrying",
                txn_id,
                participant,
                reason,
            )
        retry.attempts += 1
        retry.last_error = reason

    def note_waiting(self, txn_id: TxnId, participant: Participant) -> None:
        """It is told when the earlier ends have been repeated."""
        waits = "waits for earlier ends, which are being repeated"
        self._retries.setdefault((txn_id, participant), Retry(txn_id, participant, 0, waits))

    def forget(self, txn_id: TxnId, participant: Participant) -> None:
        self._retries.pop((txn_id, participant), None)


class _EndEverywhere:
    """The end of one transaction."""

    __slots__ = (
        "_all_told",
        "_answering",
        "_decided",
        "_end",
        "_ends",
        "_followed",
        "_has_turn",
        "_is_telling",
        "_retrying",
        "_to_tell",
        "_told_later",
        "action",
        "number",
        "txn_id",
    )

    def __init__(
        self,
        ends: ParticipantEnds,
        transaction: TransactionMetadata,
        action: TxnAction,
        low_watermark: int,
    ) -> None:
        self._ends = ends
        self.number = ends.next_number()
        self.txn_id = transaction.txn_id
        if transaction.end is None:
            transaction.end = DecidedEnd()
        self._decided = transaction.end
        self.action = action
        self._end = TransactionEnd(transaction.txn_id, action, low_watermark)
        self._followed: Callable[[], None] | None = None  # set once the decision is durable
        self._told_later: list[Participant] = []  # participants that could not be told before that
        self._to_tell: Iterator[Participant] = chain(
            map(Participant, transaction.partitions),
            starmap(Participant, transaction.subscriptions),
        )
        self._all_told = False
        self._has_turn = False  # `go_on` is scheduled
        self._is_telling = False  # `go_on` is running
        self._answering = 0  # told, but have not answered
        self._retrying = 0

    def begin(self) -> None:
        first = list(islice(self._to_tell, _AT_ONCE))
        self._all_told = len(first) < _AT_ONCE
        for participant in first:
            if self._ends.repeated and self._ends.must_queue(participant, self.action):
                self._told_later.append(participant)
                continue
            try:
                ending = self.start(participant, not_later=True)
                assert ending is None or isinstance(ending, asyncio.Future), "the ending begins now"
            except Exception:
                self._told_later.append(participant)
            else:
                self._wait_for(participant, ending)

    def decided(self, followed: Callable[[], None]) -> None:
        self._followed = followed
        if self._told_later:
            self._to_tell, self._all_told = chain(self._told_later, self._to_tell), False
        self.go_on()

    def go_on(self) -> None:
        """Tell the next participants, then yield to other transactions."""
        if self._followed is None or self._ends.closed or self._has_turn or self._is_telling:
            return
        answering, self._is_telling = self._answering, True
        for _ in range(_AT_ONCE):
            if self._all_told or self._answering >= _AT_ONCE:
                break
            self._tell_next()
        else:
            if not self._all_told:
                self._has_turn = True
                asyncio.get_running_loop().call_soon(self._turn)
        self._is_telling = False
        if self._answering > answering:
            this_turn().write_now()  # their gathered records, together with the markers
        elif self._all_told and not self._answering and not self._retrying:
            self._followed()

    def _turn(self) -> None:
        self._has_turn = False
        self.go_on()

    def _tell_next(self) -> None:
        participant = next(self._to_tell, None)
        if participant is None:
            self._all_told = True
            return
        if self._ends.repeated and self._ends.must_queue(participant, self.action):
            self._ends.note_waiting(self.txn_id, participant)
            self._repeat(participant)
            return
        try:
            ending = self.start(participant)
        except Exception as error:
            self._failed(participant, error)
        else:
            self._wait_for(participant, ending)

    def _wait_for(self, participant: Participant, ending: Ending) -> None:
        if ending is None:
            self.has_followed_now(participant, None)
        elif isinstance(ending, asyncio.Future):
            self._answering += 1
            when_done(ending, partial(self._answered, participant))
        else:
            self._answering += 1
            self._ends.tasks.start(self._first_time(participant, ending), f"end {self.txn_id}")

    def start(self, participant: Participant, not_later: bool = False) -> Ending:
        topic, subscription = participant
        participants = self._ends.participants
        if subscription is None:
            return participants.end_on_partition(self._end, topic, not_later)
        return participants.end_on_subscription(self._end, topic, subscription, not_later)

    def _answered(self, participant: Participant, ending: "asyncio.Future[object]") -> None:
        error = ending.exception()
        if error is not None:
            self._failed(participant, error)
        else:
            self._decided.note(participant, self._ends.now_ms(), ending.result())
        self._answering -= 1
        if not (self._answering and self._all_told):
            self.go_on()

    async def _first_time(self, participant: Participant, ending: Awaitable[object]) -> None:
        try:
            self.has_followed_now(participant, await ending)
        except Exception as error:
            self._failed(participant, error)
        finally:
            del ending  # its exception refers to this frame: avoid a cycle
        self._answering -= 1
        self.go_on()

    def has_followed_now(self, participant: Participant, result: object) -> None:
        self._decided.note(participant, self._ends.now_ms(), result)

    def _failed(self, participant: Participant, error: BaseException) -> None:
        if self._followed is None:
            self._told_later.append(participant)
            return
        if isinstance(error, CannotParticipate):
            self._ends.give_up(self.txn_id, participant, error)
            return
        if self._ends.closed:
            return  # the reopened coordinator tells all participants again
        self._ends.note(self.txn_id, participant, error)
        self._repeat(participant)

    def _repeat(self, participant: Participant) -> None:
        self._retrying += 1
        self._ends.repeat(_EndAgain(self, self._ends, participant))

    def followed_at_last(self, participant: Participant) -> None:
        self._ends.forget(self.txn_id, participant)
        self._retrying -= 1
        self.go_on()


class _EndAgain:
    """The end of one transaction at one participant, to be repeated."""

    __slots__ = ("_ends", "_everywhere", "participant")

    def __init__(
        self, everywhere: _EndEverywhere, ends: ParticipantEnds, participant: Participant
    ) -> None:
        self._everywhere, self._ends, self.participant = everywhere, ends, participant

    @property
    def number(self) -> int:
        return self._everywhere.number

    @property
    def action(self) -> TxnAction:
        return self._everywhere.action

    def tell(self) -> Awaitable[object] | None:
        return self._everywhere.start(self.participant)

    def answered(self, result: object) -> None:
        self._everywhere.has_followed_now(self.participant, result)
        self._everywhere.followed_at_last(self.participant)

    def failed(self, error: BaseException) -> bool:
        """True if it is to be repeated."""
        if not isinstance(error, CannotParticipate):
            self._ends.note(self._everywhere.txn_id, self.participant, error)
            return True
        self._ends.give_up(self._everywhere.txn_id, self.participant, error)
        self._everywhere.followed_at_last(self.participant)
        return False
