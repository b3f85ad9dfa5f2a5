"""Many participants are told some at a time; each follows, whatever it answers first."""

import asyncio

from txn_world import COMMIT, run, soon

from pybroker.names import TxnId
from pybroker.runtime import Tasks
from pybroker.transaction.metadata_store import TransactionMetadata
from pybroker.transaction.participants import ParticipantEnds
from pybroker.transaction.txn_status import TxnAction

ID = TxnId(0, 1)


class SlowParticipants:
    """Each answers when it is let; some of them are gone already."""

    def __init__(self, gone: bool = False) -> None:
        self.gone = gone
        self.asked = 0
        self.answering: list[asyncio.Future[None]] = []

    def end_on_partition(
        self, txn_id: TxnId, topic: str, action: TxnAction, low_watermark: int
    ) -> asyncio.Future[None] | None:
        self.asked += 1
        if self.gone:
            return None
        self.answering.append(asyncio.get_running_loop().create_future())
        return self.answering[-1]

    def end_on_subscription(
        self, txn_id: TxnId, topic: str, subscription: str, action: TxnAction, low_watermark: int
    ) -> asyncio.Future[None] | None:
        return self.end_on_partition(txn_id, topic, action, low_watermark)

    def answer(self, error: Exception | None = None) -> None:
        answering, self.answering = self.answering, []
        for future in answering:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def started(participants: SlowParticipants, count: int) -> tuple[ParticipantEnds, list[bool]]:
    followed: list[bool] = []
    transaction = TransactionMetadata(ID, 1000, 0, None)
    transaction.partitions.update(dict.fromkeys(f"t{number}" for number in range(count)))
    transaction.subscriptions[("t", "s")] = None
    ends = ParticipantEnds(participants, Tasks("test"))
    ends.end_everywhere(transaction, COMMIT, -1, lambda: followed.append(True))
    return ends, followed


def test_no_more_than_some_are_asked_at_a_time() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        _, followed = started(participants, 1000)
        while not followed:
            await soon()
            assert len(participants.answering) <= 200
            participants.answer()
            await soon()
        assert (participants.asked, followed) == (1001, [True])

    run(scenario())


def test_others_have_their_turn_while_many_are_told() -> None:
    async def scenario() -> None:
        participants = SlowParticipants(gone=True)
        _, followed = started(participants, 1000)
        assert (participants.asked, followed) == (200, [])
        await soon()
        assert (participants.asked, followed) == (1001, [True])

    run(scenario())


def test_those_that_fail_are_asked_again_and_hold_up_nobody() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        ends, followed = started(participants, 300)
        await soon()
        participants.answer(RuntimeError("not now"))
        await soon()
        assert participants.asked >= 301 and not followed
        assert len(ends.retries()) == 200
        while not followed:
            await asyncio.sleep(1)
            participants.answer()
        assert (ends.retries(), followed) == ([], [True])

    run(scenario())


def test_a_closed_one_tells_nobody_any_more() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        ends, followed = started(participants, 300)
        ends.closed = True
        participants.answer()
        await soon()
        assert (participants.asked, followed) == (200, [])

    run(scenario())
