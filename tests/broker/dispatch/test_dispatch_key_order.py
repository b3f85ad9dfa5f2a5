"""Key_Shared by random scripts: each key is with one consumer at a time, in order."""

from dispatch_fakes import KEY_SHARED, FakeTopic, RecordingSink, check_parked, with_topic
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.broker.subscriptions.subscription import Subscription

scripts = st.lists(
    st.tuples(
        st.sampled_from(["publish", "flow", "ack", "nack", "leave", "join", "pause", "cold"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


class KeyOrder:
    """Tracks what consumers hold. Asserts that no key is with two of them or out of order."""

    def __init__(self, topic: FakeTopic, subscription: Subscription) -> None:
        self.topic = topic
        self.subscription = subscription
        self.keys: list[str] = []
        self.joined: list[tuple[Consumer, RecordingSink]] = []
        self.held: dict[Consumer, dict[Position, None]] = {}
        self.acked: set[int] = set()

    def look(self) -> None:
        for consumer, sink in self.joined:
            for message in sink.received:
                self.delivered(consumer, message.position)
            sink.received.clear()
            assert consumer.unacked.messages == len(self.held.get(consumer, {}))
        check_parked(self.subscription)

    def delivered(self, consumer: Consumer, position: Position) -> None:
        key = self.keys[position.entry_id]
        mine = self.held.setdefault(consumer, {})
        for other, positions in self.held.items():
            if other is not consumer:
                assert key not in {self.keys[at.entry_id] for at in positions}
        assert position not in mine
        earlier = [at for at in range(position.entry_id) if self.keys[at] == key]
        with_me = {at.entry_id for at in mine}
        assert all(at in self.acked or at in with_me for at in earlier)
        mine[position] = None

    async def step(self, action: str, number: int) -> None:
        consumer, sink = self.joined[number % len(self.joined)]
        mine = self.held.get(consumer, {})
        chosen = list(mine)[: number % 4]
        if action == "publish":
            keys = [f"key-{(number * 7 + step) % 10}" for step in range(number)]
            self.keys += keys
            await self.topic.publish_keys(keys)
        elif action == "flow":
            self.subscription.flow(consumer, number)
        elif action == "ack":
            for position in chosen:
                del mine[position]
                self.acked.add(position.entry_id)
            self.subscription.acknowledge(consumer, chosen)
        elif action == "nack":
            mine.clear()
            self.subscription.redeliver(consumer, None)
        elif action == "leave" and len(self.joined) > 1:
            self.joined.remove((consumer, sink))
            self.held.pop(consumer, None)
            self.subscription.remove_consumer(consumer)
        elif action == "join":
            await self.join(f"c{number}")
        elif action == "pause":
            sink.writable = not sink.writable
            self.subscription.notify()
        elif action == "cold":
            self.topic.ledger.warm = not self.topic.ledger.warm
        await self.topic.settled()

    async def join(self, name: str) -> None:
        self.joined.append(await self.topic.consumer(self.subscription, KEY_SHARED, name=name))

    async def finish(self) -> None:
        """All consumers receive and acknowledge until nothing more comes."""
        for consumer, sink in self.joined:
            sink.writable = True
            self.subscription.flow(consumer, 10_000)
        while True:
            await self.topic.settled()
            self.look()
            if not any(self.held.values()):
                break
            for consumer, positions in self.held.items():
                self.acked.update(position.entry_id for position in positions)
                self.subscription.acknowledge(consumer, list(positions))
                positions.clear()
        assert self.acked == set(range(len(self.keys)))


@given(scripts)
def test_a_key_is_with_one_consumer_and_in_order(script: list[tuple[str, int]]) -> None:
    async def scenario(topic: FakeTopic) -> None:
        order = KeyOrder(topic, await topic.subscribe())
        await order.join("c0")
        for action, number in script:
            await order.step(action, number)
            order.look()
        await order.finish()

    with_topic(scenario)
