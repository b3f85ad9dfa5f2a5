"""What a broker knows of transactions whose coordinators other brokers serve."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from txn_world import ABORT, COMMIT, ORDERS, LoopClock, soon
from virtual_loop import run_virtually

from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator import remote_coordinators
from pybroker.transaction.coordinator.remote_coordinators import (
    Answer,
    Participation,
    RemoteCoordinators,
    require_begun,
)
from pybroker.transaction.txn_status import (
    TxnStatus,
    action_to_settle,
    require_open,
    require_partition,
)

TXN = TxnId(7, 1)
TAKES_PART = Answer(TxnStatus.OPEN, True, None, "")
OPEN = Answer(TxnStatus.OPEN, False, None, "")
ON_ORDERS = Participation(TXN, ORDERS)


class Coordinator:
    """A coordinator of another broker. It gives its answers one by one, and repeats the last
    forever.
    """

    def __init__(self, *answers: Answer | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[Participation] = []
        self.principals: list[str | None] = []
        self.silent = asyncio.Event()
        self.silent.set()
        self.known = RemoteCoordinators(lambda _: False, self, LoopClock())

    async def __call__(self, asked: Participation, principal: str | None) -> Answer | None:
        self.asked.append(asked)
        self.principals.append(principal)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await self.silent.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def joined(self, asked: Participation = ON_ORDERS) -> None:
        joining = self.known.join(asked)
        if joining is not None:
            await joining


Test = Callable[[], Coroutine[Any, Any, None]]


def virtually(test: Test) -> Callable[[], None]:
    def wrapped() -> None:
        run_virtually(test())

    wrapped.__name__ = test.__name__
    return wrapped


@virtually
async def test_a_message_waits_until_the_coordinator_says_that_its_topic_takes_part() -> None:
    there = Coordinator(TAKES_PART)
    there.silent.clear()
    joining = there.known.join(ON_ORDERS)
    assert joining is not None and joining is there.known.join(ON_ORDERS)
    with pytest.raises(TransactionCoordinatorNotFound, match="another broker"):
        require_open(there.known, TXN)
    there.silent.set()
    await joining
    assert there.known.join(ON_ORDERS) is None
    require_open(there.known, TXN)
    require_partition(there.known, TXN, ORDERS)


@virtually
async def test_one_answer_serves_all_later_messages() -> None:
    there = Coordinator(TAKES_PART)
    await there.joined()
    await asyncio.sleep(1.0)
    assert there.known.join(ON_ORDERS) is None
    assert there.asked == [ON_ORDERS]


@virtually
async def test_a_topic_that_was_not_added_is_refused_and_may_be_added_later() -> None:
    there = Coordinator(OPEN, TAKES_PART)
    await there.joined()
    assert there.known.join(ON_ORDERS) is None
    with pytest.raises(InvalidTxnStatus, match="add the partition"):
        require_partition(there.known, TXN, ORDERS)
    await asyncio.sleep(1.0)
    await there.joined()
    require_partition(there.known, TXN, ORDERS)


@virtually
async def test_nothing_is_sent_into_a_transaction_after_its_end_was_told() -> None:
    there = Coordinator(TAKES_PART)
    await there.joined()
    await there.known.told(TXN, COMMIT, trusted=True)
    with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
        require_open(there.known, TXN)
    assert there.known.join(ON_ORDERS) is None


@virtually
async def test_an_answer_that_an_end_has_overtaken_opens_nothing() -> None:
    there = Coordinator(TAKES_PART)
    there.silent.clear()
    joining = there.known.join(ON_ORDERS)
    await there.known.told(TXN, ABORT, trusted=True)
    there.silent.set()
    assert joining is not None
    await joining
    with pytest.raises(InvalidTxnStatus, match="ABORTED"):
        require_open(there.known, TXN)


@virtually
async def test_an_end_overtakes_an_answer_even_if_it_was_forgotten_meanwhile() -> None:
    there = Coordinator(TAKES_PART, Answer(TxnStatus.COMMITTED, False, None, ""))
    there.silent.clear()
    joining = there.known.join(ON_ORDERS)
    await asyncio.sleep(1.0)
    await there.known.told(TXN, COMMIT, trusted=True)
    there.known._known.clear()
    there.known._forgotten_up_to_s = asyncio.get_running_loop().time()  # as eviction does
    there.silent.set()
    assert joining is not None
    await joining
    with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
        require_open(there.known, TXN)


@virtually
async def test_what_was_open_before_topics_came_is_asked_again() -> None:
    there = Coordinator(TAKES_PART, Answer(TxnStatus.COMMITTED, False, None, ""))
    await there.joined()
    await asyncio.sleep(1.0)
    there.known.forget_open()
    with pytest.raises(TransactionCoordinatorNotFound):
        require_open(there.known, TXN)
    await asyncio.sleep(1.0)
    with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
        require_open(there.known, TXN)


@virtually
async def test_an_answer_from_before_topics_came_opens_nothing() -> None:
    there = Coordinator(TAKES_PART, Answer(TxnStatus.ABORTED, False, None, "it timed out"))
    there.silent.clear()
    joining = there.known.join(ON_ORDERS)
    await asyncio.sleep(1.0)
    there.known.forget_open()
    there.silent.set()
    assert joining is not None
    await joining
    with pytest.raises(InvalidTxnStatus, match="it timed out"):
        require_open(there.known, TXN)


@virtually
async def test_a_fail_over_of_the_coordinator_is_waited_for() -> None:
    there = Coordinator(*5 * [ServiceNotReady("who has it?")], TAKES_PART)
    await there.joined()
    require_partition(there.known, TXN, ORDERS)


@virtually
async def test_a_coordinator_that_stays_away_refuses_messages_and_settles_nothing() -> None:
    there = Coordinator(TransactionCoordinatorNotFound("it is opening"))
    began_s = asyncio.get_running_loop().time()
    await there.joined()
    assert asyncio.get_running_loop().time() - began_s < 16
    with pytest.raises(TransactionCoordinatorNotFound):
        require_open(there.known, TXN)
    with pytest.raises(TransactionCoordinatorNotFound):
        action_to_settle(there.known, TXN)


@virtually
async def test_what_a_coordinator_has_not_begun_is_not_taken_for_aborted() -> None:
    there = Coordinator(TransactionNotFound("not begun"))
    await there.joined()
    with pytest.raises(TransactionCoordinatorNotFound):
        action_to_settle(there.known, TXN)


@virtually
async def test_a_recovered_topic_learns_the_outcome_in_the_background() -> None:
    there = Coordinator(Answer(TxnStatus.COMMITTED, False, None, ""))
    with pytest.raises(TransactionCoordinatorNotFound):
        action_to_settle(there.known, TXN)
    await soon()
    assert action_to_settle(there.known, TXN) is COMMIT


@virtually
async def test_what_nobody_remembers_is_aborted() -> None:
    there = Coordinator(Answer(None, False, None, ""))
    await there.joined()
    assert action_to_settle(there.known, TXN) is ABORT


@virtually
async def test_what_was_open_is_asked_again_until_it_has_ended() -> None:
    there = Coordinator(
        TAKES_PART,
        Answer(TxnStatus.COMMITTING, True, None, ""),
        Answer(TxnStatus.ABORTED, False, None, ""),
    )
    await there.joined()
    assert action_to_settle(there.known, TXN) is None
    await asyncio.sleep(6.0)
    assert action_to_settle(there.known, TXN) is None
    await asyncio.sleep(6.0)
    assert action_to_settle(there.known, TXN) is None  # still COMMITTING, as far as known
    await soon()
    assert action_to_settle(there.known, TXN) is ABORT


@virtually
async def test_an_end_that_was_not_decided_is_refused_where_everybody_may_send_it() -> None:
    there = Coordinator(OPEN)
    with pytest.raises(InvalidTxnStatus, match="did not decide to COMMIT"):
        await there.known.told(TXN, COMMIT, trusted=False)
    there.answers = [Answer(TxnStatus.COMMITTING, False, None, "")]
    with pytest.raises(InvalidTxnStatus, match="COMMITTING"):
        await there.known.told(TXN, ABORT, trusted=False)
    await there.known.told(TXN, COMMIT, trusted=False)


@virtually
async def test_no_end_contradicts_the_one_before() -> None:
    there = Coordinator(OPEN)
    await there.known.told(TXN, COMMIT, trusted=True)
    await there.known.told(TXN, COMMIT, trusted=False)
    with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
        await there.known.told(TXN, ABORT, trusted=True)
    assert not there.asked


@virtually
async def test_apaches_brokers_are_believed_without_asking() -> None:
    there = Coordinator(None)
    await there.joined()
    require_partition(there.known, TXN, ORDERS)
    assert action_to_settle(there.known, TXN) is None
    await there.known.told(TXN, ABORT, trusted=False)
    assert action_to_settle(there.known, TXN) is ABORT


def test_it_remembers_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_coordinators, "_MOST_KNOWN", 10)

    async def remember() -> None:
        there = Coordinator(TAKES_PART)
        for least in range(30):
            await there.known.told(TxnId(7, least), COMMIT, trusted=True)
        assert len(there.known._known) == 10
        assert there.known.status(TxnId(7, 29)) is TxnStatus.COMMITTED

    run_virtually(remember())


def test_a_client_leaves_room_for_the_questions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_coordinators, "_MOST_QUESTIONS", 10)

    async def ask() -> None:
        there = Coordinator(TAKES_PART)
        there.silent.clear()
        asked = [
            there.known.join(Participation(TxnId(number, n), ORDERS), client)
            for number, client in enumerate(("greedy", "greedy too", "modest"))
            for n in range(30)
        ]
        started = [each is not None for each in asked]
        assert [sum(started[at : at + 30]) for at in (0, 30, 60)] == [5, 3, 1]
        there.silent.set()
        await asyncio.sleep(1)  # their questions no longer count
        there.silent.clear()
        asked = [there.known.join(Participation(TxnId(8, n), ORDERS), "greedy") for n in range(30)]
        assert sum(each is not None for each in asked) == 5
        await soon()
        await there.known.close()
        assert all(each is None or each.done() for each in asked)
        assert there.known.join(ON_ORDERS, "modest") is None  # no more questions

    run_virtually(ask())


@virtually
async def test_a_subscription_takes_part_by_itself() -> None:
    there, on_sub = Coordinator(TAKES_PART), Participation(TXN, ORDERS, "sub")
    await there.joined(on_sub)
    assert there.known.has_subscription(TXN, ORDERS, "sub")
    assert not there.known.has_subscription(TXN, ORDERS, "other")
    assert not there.known.has_partition(TXN, ORDERS)


@virtually
async def test_what_is_known_to_be_open_is_not_asked_again_at_once() -> None:
    await asyncio.sleep(100)
    there = Coordinator(TAKES_PART)
    await there.joined()
    await asyncio.sleep(4.9)
    require_open(there.known, TXN)
    await soon()
    assert there.asked == [ON_ORDERS]


@virtually
async def test_the_owner_is_known_from_the_answer() -> None:
    there = Coordinator(Answer(TxnStatus.OPEN, True, "alice", ""))
    assert there.known.owner_of(TXN) is None
    await there.joined()
    assert there.known.owner_of(TXN) == "alice"


class Served(NamedTuple):
    highest_id: int


def test_only_what_a_coordinator_has_begun_may_be_taken_for_ended() -> None:
    require_begun(Served(highest_id=1), TxnId(7, 1))
    with pytest.raises(TransactionNotFound, match="has not begun"):
        require_begun(Served(highest_id=0), TxnId(7, 1))


@virtually
async def test_only_the_subscription_that_was_asked_about_takes_part() -> None:
    there = Coordinator(TAKES_PART)
    await there.joined(Participation(TXN, ORDERS, "s"))
    assert there.known.has_subscription(TXN, ORDERS, "s")
    assert not there.known.has_subscription(TXN, ORDERS, "other")
    assert not there.known.has_partition(TXN, ORDERS)


@virtually
async def test_after_an_end_was_learned_nothing_takes_part() -> None:
    there = Coordinator(TAKES_PART, Answer(TxnStatus.COMMITTED, False, None, ""))
    await there.joined()
    assert there.known.has_partition(TXN, ORDERS)
    await asyncio.sleep(10.0)
    there.known.status(TXN)  # asks again in the background
    await asyncio.sleep(1.0)
    assert there.known.status(TXN) is TxnStatus.COMMITTED
    assert not there.known.has_partition(TXN, ORDERS)


@virtually
async def test_a_broker_that_closes_asks_no_more() -> None:
    there = Coordinator(TransactionNotFound("not yet"))
    joining = there.known.join(ON_ORDERS)
    assert joining is not None
    await asyncio.sleep(0.0)
    await there.known.close()
    asked = len(there.asked)
    there.known.join(Participation(TXN, "persistent://public/default/another"))
    await asyncio.sleep(60.0)
    assert len(there.asked) == asked


@virtually
async def test_a_refusal_is_told_to_who_asked_and_asked_about_again_later() -> None:
    there = Coordinator(NotAllowed("there is no room"), TAKES_PART)
    joining = there.known.join(ON_ORDERS)
    assert joining is not None
    await asyncio.wait([joining])
    for _ in range(2):
        with pytest.raises(NotAllowed, match="there is no room"):
            there.known.join(ON_ORDERS)
    assert there.asked == [ON_ORDERS]
    await asyncio.sleep(1)
    await there.joined()
    require_partition(there.known, TXN, ORDERS)


@virtually
async def test_each_principal_asks_for_itself() -> None:
    there = Coordinator(OPEN, TAKES_PART)
    mallory, alice = (there.known.join(ON_ORDERS, "", name) for name in ("mallory", "alice"))
    assert mallory is not None and alice is not None and mallory is not alice
    await asyncio.wait([mallory, alice])
    assert there.principals == ["mallory", "alice"]
    require_partition(there.known, TXN, ORDERS)


@virtually
async def test_room_is_taken_for_each_question_and_given_back_with_the_end() -> None:
    there, taken = Coordinator(TAKES_PART), list[str]()

    def join(*subscription: str) -> asyncio.Future[TxnId] | None:
        asked = Participation(TXN, ORDERS, *subscription)
        return there.known.join(asked, begins=lambda: taken.append("room"))

    assert there.known.participants_in(TXN) == 0
    for subscription in ((), (), ("s",)):
        join(*subscription)
    assert taken == ["room"] * 2
    await soon()
    assert there.known.participants_in(TXN) == 2
    await there.known.told(TXN, COMMIT, trusted=True)
    assert there.known.participants_in(TXN) == 0
