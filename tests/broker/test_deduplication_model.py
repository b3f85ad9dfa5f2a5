"""Whatever clients, transactions and crashes do, no message is visible twice or lost.

A recovery restores from the snapshot and the log exactly what the broker knew before.
"""

from typing import Any

from deduplication_world import World, one, with_world
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.names import TxnId
from pybroker.broker.deduplication import Deduplication
from pybroker.wire.message_metadata import MARKER_TXN_ABORT, transaction_of

PRODUCERS = ("p", "q")
producers = st.sampled_from(PRODUCERS)
slots = st.integers(0, 2)  # of transactions that are open at the same time

steps = st.one_of(
    st.tuples(st.just("publish"), producers, st.integers(0, 3)),
    st.tuples(st.just("publish in"), producers, slots),
    st.tuples(st.just("retry"), producers, st.integers(0, 5)),
    st.tuples(st.just("retry in"), slots, st.integers(0, 3)),
    st.tuples(st.just("copy"), slots, st.none() | slots, st.integers(0, 3)),
    st.tuples(st.just("fail"), producers),
    st.tuples(st.just("refuse"), producers),
    st.tuples(st.just("refused again"), producers),
    st.tuples(st.just("commit"), slots),
    st.tuples(st.just("abort"), slots),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("crash")),
)


class Model:
    """Applications that number their messages in order and resend aborted ones."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.next = dict.fromkeys(PRODUCERS, 0)
        self.open: dict[int, TxnId] = {}
        self.carried: dict[TxnId, list[tuple[str, int]]] = {}
        # Waiting copies: the copied message to the copy's transaction, None without one.
        self.copies: dict[tuple[str, int], TxnId | None] = {}
        self.confirmed: set[tuple[str, int]] = set()
        self.refused = dict[str, list[int]]((producer, []) for producer in PRODUCERS)
        self.stored = dict.fromkeys(PRODUCERS, -1)  # the highest one
        self.begun = 0

    async def step(self, name: str, *args: object) -> None:
        await getattr(self, name.replace(" ", "_"))(*args)

    async def publish(self, producer: str, gap: int) -> None:
        self.next[producer] += gap
        await self.send_next(producer, None)

    async def publish_in(self, producer: str, slot: int) -> None:
        await self.send_next(producer, self.opened(slot))

    def opened(self, slot: int) -> TxnId:
        if slot not in self.open:
            self.begun += 1
            self.open[slot] = TxnId(0, self.begun)
        return self.open[slot]

    async def send_next(self, producer: str, txn_id: TxnId | None) -> None:
        sequence_id = self.next[producer]
        self.next[producer] += 1
        assert await self.world.publish(one(sequence_id), producer, txn_id), "a new one is new"
        self.stored[producer] = sequence_id
        if txn_id is None:
            self.confirmed.add((producer, sequence_id))
        else:
            self.carried.setdefault(txn_id, []).append((producer, sequence_id))

    async def retry(self, producer: str, back: int) -> None:
        """Resends a confirmed message: it is a duplicate. Unconfirmed ones are not resent here."""
        known = sorted(number for name, number in self.confirmed if name == producer)
        if len(known) > back:
            assert not await self.world.publish(one(known[-1 - back]), producer)

    async def refuse(self, producer: str) -> None:
        """A write fails. The application continues, and may resend the message later."""
        self.world.fail(self.world.take(one(self.next[producer]), producer), OSError())
        self.refused[producer].append(self.next[producer])
        self.next[producer] += 1

    async def refused_again(self, producer: str) -> None:
        if self.refused[producer]:
            sequence_id = self.refused[producer].pop(0)
            assert await self.world.publish(one(sequence_id), producer), "it is in no log"
            self.stored[producer] = max(self.stored[producer], sequence_id)
            self.confirmed.add((producer, sequence_id))

    async def fail(self, producer: str) -> None:
        """A write fails; the client sends the message again."""
        self.world.fail(self.world.take(one(self.next[producer]), producer), OSError())
        await self.send_next(producer, None)

    async def retry_in(self, slot: int, back: int) -> None:
        """Resends a message in its own transaction."""
        if slot in self.open and len(carried := self.carried.get(self.open[slot], [])) > back:
            producer, sequence_id = carried[-1 - back]
            assert not await self.world.publish(one(sequence_id), producer, self.open[slot])

    async def copy(self, of: int, slot: int | None, back: int) -> None:
        """Sends a copy in another transaction, or in none."""
        carried = self.carried.get(self.open[of], []) if of in self.open else []
        if of != slot and len(carried) > back:
            producer, sequence_id = carried[-1 - back]
            txn_id = None if slot is None else self.opened(slot)
            assert self.world.copied(one(sequence_id), producer, txn_id) == self.open[of]
            self.copies[producer, sequence_id] = txn_id

    async def commit(self, slot: int) -> None:
        if slot in self.open:
            txn_id = self.open.pop(slot)
            await self.world.end(txn_id, abort=False)
            for producer, sequence_id in self.carried.get(txn_id, ()):
                self.confirmed.add((producer, sequence_id))
                other = self.copies.pop((producer, sequence_id), None)
                assert not await self.world.publish(one(sequence_id), producer, other)

    async def abort(self, slot: int) -> None:
        """Messages of an aborted transaction are sent again in order; if a copy waits, as that
        copy.
        """
        if slot in self.open:
            txn_id = self.open.pop(slot)
            await self.world.end(txn_id, abort=True)
            for producer, sequence_id in self.carried.pop(txn_id, ()):
                other = self.copies.pop((producer, sequence_id), None)
                other = other if other in self.open.values() else None
                assert await self.world.publish(one(sequence_id), producer, other), "was aborted"
                assert not await self.world.publish(one(sequence_id), producer, other)
                if other is None:
                    self.confirmed.add((producer, sequence_id))
                else:
                    self.carried.setdefault(other, []).append((producer, sequence_id))

    async def snapshot(self) -> None:
        await self.world.deduplication.snapshot()

    async def crash(self) -> None:
        before = known(self.world.deduplication)
        await self.world.crash_and_recover()
        assert known(self.world.deduplication) == before
        for producer, refused in self.refused.items():  # ids that no record mentions are forgotten
            refused[:] = [number for number in refused if number <= self.stored[producer]]

    async def check_log(self) -> None:
        entries = await self.world.entries()
        aborted = {transaction_of(e) for e in entries if e.marker_type == MARKER_TXN_ABORT}
        visible = [
            (entry.producer_name, entry.sequence_id)
            for entry in entries
            if not entry.marker_type and transaction_of(entry) not in aborted
        ]
        assert len(visible) == len(set(visible)), "something is visible twice"
        assert self.confirmed <= set(visible), "something is lost"


def known(deduplication: Deduplication) -> dict[str, Any]:
    return {
        name: (
            state.top,
            state.durable,
            state.floor,
            [span for span in state.returned if span[0] <= state.top],  # above it all ids are new
            {txn_id: list(ids) for txn_id, ids in state.open.items()},
            list(state.in_transactions),
            list(state.flying),
        )
        for name, state in deduplication._producers.items()
        if state.top >= 0
    }


@given(st.lists(steps, max_size=40))
def test_everything_confirmed_is_in_the_log_once(script: list[tuple[str, ...]]) -> None:
    async def scenario(world: World) -> None:
        model = Model(world)
        for step in script:
            await model.step(*step)
        await model.crash()
        await model.check_log()

    with_world(scenario)
