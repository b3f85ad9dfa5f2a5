"""Answers about transactions whose coordinators other brokers serve.

Topics and subscriptions ask for outcomes synchronously, so the answers of other brokers are kept:

    SEND, ACK    the first of a transaction on a topic or subscription waits for the coordinator's
                 answer (`join`): is the transaction open, and is the topic or subscription one of
                 its participants?
    SEND         the first of a producer with a transactional id waits until the transaction belongs
                 to the producer's session (`bind`)
    END_TXN_ON_  the coordinator has decided: from now on the transaction is refused (`told`)
    settling     a participant with an open transaction asks in the background until the coordinator
                 knows the outcome

"Not known here" never means "never existed": until a coordinator has answered, look-ups raise
TransactionCoordinatorNotFound. The answer "open" may be outdated. It only admits messages to
participants that the coordinator knows and will end, and an END handled here replaces it. But the
ENDs of a topic that another broker served went there, so `forget_open` drops these answers when
this broker acquires topics.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from managed_ledger.prompt import fail
from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    ProducerFenced,
    PulsarError,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock, Tasks, do_nothing
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef
from pybroker.transaction.txn_status import ACTION_OF_STATUS, ENDED_STATUS, TxnAction, TxnStatus

ASK_FOR_S: Final = 15.0  # shorter than SENDs are held; longer than a fail-over takes
_UNKNOWN_FOR_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0
_MOST_KNOWN: Final = 50_000
_MOST_QUESTIONS: Final = 10_000  # in progress
_BACKGROUND: Final = "-"  # this broker itself, as the client of a question
_ASK_AGAIN_S: Final = 5.0  # about a transaction that was open
_ANSWERED_S: Final = 0.1  # a caller that waited for an answer reads it within this time

_ENDED: Final = (TxnStatus.COMMITTED, TxnStatus.ABORTED)


class Participation(NamedTuple):
    """A topic or a subscription of a transaction. No topic: the transaction as a whole."""

    txn_id: TxnId
    topic: str | None = None  # the canonical name
    subscription: str | None = None
    session: SessionRef | None = None  # to which the transaction shall belong from now on


class Answer(NamedTuple):
    """A coordinator's answer about a transaction."""

    status: TxnStatus | None  # None: it ended longer ago than outcomes are retained
    takes_part: bool
    owner: str | None
    reason: str  # of an abort, as a clause; may be empty
    session: SessionRef | None = None  # to which the transaction belongs


# Apache Pulsar's brokers do not ask: they trust what clients and coordinators send.
_SUPPOSED: Final = Answer(TxnStatus.OPEN, True, None, "")


def _as_told(action: TxnAction) -> Answer:
    return Answer(ENDED_STATUS[action], False, None, "")


class AsksCoordinators(Protocol):
    async def __call__(self, asked: Participation, principal: str | None) -> Answer | None:
        """Ask the coordinator, which adds the participant for `principal` if the transaction spans
        its namespace (see `joining`), and binds the transaction to the session, if given. A
        principal of None may use any transaction. Returns None if the coordinator's broker is
        Apache Pulsar's, which cannot be asked.

        Raises TransactionNotFound (the coordinator has not begun the transaction yet), NotAllowed
        (there is no room for the participant), ProducerFenced (the session is fenced), or another
        PulsarError if no broker can answer now. None of these errors means that the transaction was
        never begun.
        """
        ...


class HasBegun(Protocol):
    """A coordinator."""

    @property
    def highest_id(self) -> int: ...


def require_begun(coordinator: HasBegun, txn_id: TxnId) -> None:
    """Check that this coordinator has begun the transaction. If another broker serves the
    coordinator by now, it may have begun more: nobody may conclude that these ended long ago.
    Raises TransactionNotFound.
    """
    if txn_id.least > coordinator.highest_id:
        raise TransactionNotFound(f"Transaction {txn_id} has not begun here")


_Question = tuple[Participation, str | None]  # the subject, and the principal that asks


class _Known:
    __slots__ = ("asked_s", "noted_s", "owner", "reason", "session", "status", "takes_part")

    def __init__(self, noted_s: float) -> None:
        self.noted_s = noted_s  # when this broker learned of the transaction, or of its end
        self.status: TxnStatus | None = None
        self.owner: str | None = None
        self.reason = ""
        self.session: SessionRef | None = None
        self.takes_part: set[Participation] = set()
        self.asked_s = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the transaction has ended; then nothing here changes any more."""
        return self.status is None or self.status in _ENDED


class RemoteCoordinators:
    """Implements TransactionOutcomes for transactions of other brokers' coordinators.

    `serves`: whether this broker serves a coordinator itself.
    """

    def __init__(self, serves: Callable[[int], bool], ask: AsksCoordinators, clock: Clock) -> None:
        self.serves = serves
        self._ask = ask
        self._clock = clock
        self._known: dict[TxnId, _Known] = {}  # in the order of `noted_s`
        self._questions: dict[_Question, asyncio.Future[TxnId]] = {}
        self._asking: Counter[str] = Counter()  # the number of questions by client
        # Answers noted up to this time may have been forgotten.
        self._forgotten_up_to_s = -1.0
        self._tasks = Tasks("questions about transactions")
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()

    # TransactionOutcomes

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        known = self._known.get(txn_id)
        if known is None:
            self._ask_in_background(txn_id)
            raise _unknown(txn_id)
        if not known.has_ended and self._clock.monotonic_s() - known.asked_s > _ASK_AGAIN_S:
            self._ask_in_background(txn_id)
        return known.status

    def has_partition(self, txn_id: TxnId, topic: str) -> bool:
        return Participation(txn_id, topic) in self._require(txn_id).takes_part

    def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool:
        return Participation(txn_id, topic, subscription) in self._require(txn_id).takes_part

    def why_aborted(self, txn_id: TxnId) -> str:
        return self._require(txn_id).reason

    def _require(self, txn_id: TxnId) -> _Known:
        known = self._known.get(txn_id)
        if known is None:
            raise _unknown(txn_id)
        return known

    def owner_of(self, txn_id: TxnId) -> str | None:
        """The role that began the transaction; None if there is none, or if the transaction is
        unknown here: call `join` first.
        """
        known = self._known.get(txn_id)
        return None if known is None else known.owner

    def participants_in(self, txn_id: TxnId) -> int:
        """The number of the transaction's participants that are known here; 0 if it has ended."""
        known = self._known.get(txn_id)
        return 0 if known is None else len(known.takes_part)

    # Answers

    def join(
        self,
        asked: Participation,
        client: str = "",
        principal: str | None = None,
        begins: Callable[[], None] = do_nothing,
    ) -> asyncio.Future[TxnId] | None:
        """Ask the coordinator about a participant. Completes when it has been asked, whether or not
        it has answered. None: nothing is left to learn, or the `client` has too many questions in
        progress. The future is shared: do not cancel it. `begins` is called before a new question,
        and may raise.

        Raises NotAllowed if the coordinator has just refused the participant: there is no room.
        """
        known = self._known.get(asked.txn_id)
        if known is not None and (known.has_ended or asked in known.takes_part):
            return None
        question = self._questions.get((asked, principal))
        if question is None:
            begins()
            question = self._start((asked, principal), ASK_FOR_S, client)
        if question is None or not question.done():
            return question
        if (refusal := question.exception()) is not None:
            raise NotAllowed(str(refusal))
        return None

    def session_of(self, txn_id: TxnId) -> SessionRef | None:
        """The session to which the transaction belongs; None if there is none or it is unknown
        here: call `bind` first.
        """
        known = self._known.get(txn_id)
        return None if known is None else known.session

    def bind(self, txn_id: TxnId, session: SessionRef, client: str) -> asyncio.Future[TxnId] | None:
        """Bind the transaction to the session, unless it belongs to one already. None: it has
        ended, or `session_of` is final. Otherwise a future as from `join`.

        Raises TransactionCoordinatorNotFound if the coordinator has not answered, and
        ProducerFenced or NotAllowed if it has just refused to bind the transaction.
        """
        known = self._known.get(txn_id)
        if known is not None and (known.status is not TxnStatus.OPEN or known.session is not None):
            return None
        asked = Participation(txn_id, session=session), None
        question = self._questions.get(asked) or self._start(asked, ASK_FOR_S, client)
        if question is None:
            raise _unknown(txn_id)
        if not question.done():
            return question
        question.result()
        raise _unknown(txn_id)

    async def told(self, txn_id: TxnId, action: TxnAction, *, trusted: bool) -> None:
        """Another broker requests the transaction's end on a participant here. `trusted`: only a
        broker can have sent the request. Otherwise any client could claim the decision, so the
        coordinator is asked to confirm it.

        Raises InvalidTxnStatus (open, or decided otherwise), TransactionCoordinatorNotFound.
        """
        known = self._known.get(txn_id)
        is_news = known is None or known.status not in _ENDED
        if is_news and not trusted:
            answer = await self._ask(Participation(txn_id), None) or _as_told(action)
            if ACTION_OF_STATUS.get(answer.status or TxnStatus.OPEN) is not action:
                raise _not_decided(txn_id, answer.status, action)
            known = self._known.get(txn_id)
        if known is not None and known.status in _ENDED:
            if ACTION_OF_STATUS[known.status] is not action:
                raise _not_decided(txn_id, known.status, action)
            return
        before = self._known.pop(txn_id, None)
        ended = self._note(txn_id)
        ended.status = ENDED_STATUS[action]
        if before is not None:
            ended.owner = before.owner

    def told_open(self, part: Participation, owner: str | None, began_s: float) -> None:
        """The coordinator's broker, which was asked at `began_s`, has said that the transaction is
        open and `part` a part of it. Ignored if it may be outdated.
        """
        self._learn(part, Answer(TxnStatus.OPEN, True, owner, ""), began_s)

    def forget_open(self) -> None:
        """Forget the answer "open" for all transactions: this broker has acquired topics from other
        brokers, which may have handled ENDs that are unknown here.
        """
        self._forgotten_up_to_s = self._clock.monotonic_s()
        open_ones = [each for each, known in self._known.items() if not known.has_ended]
        for txn_id in open_ones:
            del self._known[txn_id]

    # Questions

    def _ask_in_background(self, txn_id: TxnId) -> None:
        asked = Participation(txn_id), None
        if asked not in self._questions:
            self._start(asked, 0.0)

    def _start(
        self, asked: _Question, ask_for_s: float, client: str = _BACKGROUND
    ) -> asyncio.Future[TxnId] | None:
        """None if the client has too many questions in progress: at most as many as there are free
        places. So one client leaves half of the places to the others, and n clients leave one part
        in n + 1.
        """
        if self._closed or self._asking[client] >= _MOST_QUESTIONS - len(self._questions):
            return None
        self._asking[client] += 1
        question = self._questions[asked] = asyncio.get_running_loop().create_future()
        self._tasks.start(self._answer(asked, question, ask_for_s, client), f"{asked[0].txn_id}")
        return question

    async def _answer(
        self,
        asked: _Question,
        question: asyncio.Future[TxnId],
        ask_for_s: float,
        client: str,
    ) -> None:
        try:
            await self._ask_until_known(*asked, ask_for_s)
        except (NotAllowed, ProducerFenced) as refusal:
            fail(question, type(refusal)(str(refusal)))
        finally:
            if not question.done():
                question.set_result(asked[0].txn_id)
            loop = asyncio.get_running_loop()
            loop.call_later(_ANSWERED_S, self._forget, asked, client)

    def _forget(self, asked: _Question, client: str) -> None:
        del self._questions[asked]
        self._asking[client] -= 1
        if not self._asking[client]:
            del self._asking[client]

    async def _ask_until_known(
        self, asked: Participation, principal: str | None, ask_for_s: float
    ) -> None:
        """Raises NotAllowed or ProducerFenced if the coordinator refuses."""
        first_s, pause_s = self._clock.monotonic_s(), _FIRST_PAUSE_S
        while True:
            began_s = self._clock.monotonic_s()
            try:
                answer = await self._ask(asked, principal) or _SUPPOSED
                if self._learn(asked, answer, began_s):
                    return
            except TransactionNotFound:  # its broker may have lost the coordinator to another
                ask_for_s = min(ask_for_s, _UNKNOWN_FOR_S)
            except (NotAllowed, ProducerFenced):
                raise
            except PulsarError:
                pass  # no broker serves the coordinator at the moment
            if self._clock.monotonic_s() + pause_s > first_s + ask_for_s:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _learn(self, asked: Participation, answer: Answer, began_s: float) -> bool:
        """Note the answer. False if it may be outdated."""
        known = self._known.get(asked.txn_id)
        if known is not None and known.has_ended:
            return True
        final = answer.status is None or answer.status in _ENDED
        if not final and began_s <= self._forgotten_up_to_s:
            return False
        known = self._note(asked.txn_id)
        known.status, known.owner, known.reason = answer.status, answer.owner, answer.reason
        known.asked_s = began_s
        known.session = answer.session or known.session  # never changes once known
        if known.has_ended:
            known.takes_part.clear()
        elif answer.takes_part:
            known.takes_part.add(asked)
        return True

    def _note(self, txn_id: TxnId) -> _Known:
        known = self._known.get(txn_id)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                oldest = self._known.pop(next(iter(self._known)))
                self._forgotten_up_to_s = max(self._forgotten_up_to_s, oldest.noted_s)
            known = self._known[txn_id] = _Known(self._clock.monotonic_s())
        return known


def _unknown(txn_id: TxnId) -> TransactionCoordinatorNotFound:
    return TransactionCoordinatorNotFound(
        f"The coordinator of transaction {txn_id} is on another broker, which has not answered "
        "yet: try again"
    )


def _not_decided(txn_id: TxnId, status: TxnStatus | None, action: TxnAction) -> InvalidTxnStatus:
    state = "over" if status is None else status.name
    return InvalidTxnStatus(
        f"Transaction {txn_id} is {state}: its coordinator did not decide to {action.name} it; end "
        "it with END_TXN"
    )
