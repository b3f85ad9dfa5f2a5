"""`pybroker hand-over` on simulated bookies: its result, and the reasons for a refusal.

tests/bookkeeper/test_apache_transactions.py shows that Apache Pulsar's broker continues from there.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sim_ledger import LIMITS, SESSION_MS
from sim_zookeeper import ADDRESS
from txn_cluster import COORDINATOR, TxnBroker, TxnCluster

from managed_ledger.codec import Reader
from managed_ledger.errors import DirectoryInUse
from managed_ledger.position import Position
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.deduplication.snapshot import encode_head
from pybroker.broker.persistent.entry_metadata import OFFSETS
from pybroker.broker.policies.table import MAX_PRODUCERS
from pybroker.cluster.node_values import bundles_data, equal_boundaries
from pybroker.cluster.transactions.formats import FOREIGN, message_count
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.handing_over.hand_over import NotHandedOver, Summary, _java_hash
from pybroker.handing_over.main import _said_of_policies, handed_over
from pybroker.handing_over.snapshot import Aborted, snapshot
from pybroker.moving.cluster import alone
from pybroker.process.app import Broker
from pybroker.simulation.world import SimulatedClock
from pybroker.transaction.coordinator.log.pulsar_log import decode_pulsar
from pybroker.transaction.coordinator.log.transaction_log import log_name
from pybroker.wire.message_metadata import parse_metadata, payload_of

SNAPSHOTS = "public/default/persistent/__transaction_buffer_snapshot"
ORDERS = "persistent://public/default/orders"


class Leaving(TxnCluster):
    """A cluster with one broker; the command runs on another machine."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self.broker = self.start("one")
        self.serve_coordinator(self.broker)
        self.take(self.broker, TopicName.parse(ORDERS))
        self.lines: list[str] = []
        self._runs = 0

    def _backend(self) -> BookKeeperBackend:
        self._runs += 1
        quorums = Quorums(1, 1, 1) if len(self.life.disks) == 1 else Quorums(2, 2, 2)
        config = in_apaches_formats(
            ClusterConfig(session_timeout_ms=SESSION_MS, quorums=quorums, limits=LIMITS),
            self.config.cluster_name,
            bundles_data(equal_boundaries(self.config.default_number_of_namespace_bundles)),
        )
        rng = self.world.stream(f"hand-over {self._runs}")
        clock = SimulatedClock(self.world)
        return BookKeeperBackend(ADDRESS, clock, rng, config, message_count, FOREIGN)

    def hand_over(self, wait_s: float = 0.0, abort_open: bool = False) -> Summary:
        return self.world.call(self._node(), self._hand_over(wait_s, abort_open))

    def _node(self) -> Any:
        return self.life.node(f"hand-over {self._runs}")

    async def _hand_over(self, wait_s: float, abort_open: bool) -> Summary:
        clock, backend = SimulatedClock(self.world), self._backend()
        rng = self.world.stream(f"hand-over's lock {self._runs}")
        async with alone(ADDRESS, rng, SESSION_MS):
            broker = Broker(self.config, backend, clock, rng)
            tell = self.lines.append
            return await handed_over(broker, self.config, clock, tell, wait_s, abort_open)

    def end_broker(self) -> None:
        self.crash(self.broker)
        self.world.sleep(30)

    def entries(self, name: str, cursor: str | None = None) -> list[bytes]:
        """All entries of a managed ledger, or those after a cursor's mark-delete position."""

        async def read() -> list[bytes]:
            backend = self._backend()
            await backend.open()
            broker = Broker(
                self.config, backend, SimulatedClock(self.world), self.world.stream("r")
            )
            ledger = await broker.ledgers.open(name)
            at = ledger.first_position
            if cursor is not None:
                at = ledger.cursors[cursor].mark_delete_position.after
            found: list[bytes] = []
            while run := await ledger.read(at, ledger.last_confirmed, 1000, 1 << 20):
                found += run.entries
                at = Position(run.ledger_id, run.first_entry_id + len(run.entries))
            await backend.close()
            return found

        self._runs += 1
        found: list[bytes] = self.world.call(self._node(), read())
        return found

    def coordinators_in_zookeeper(self) -> int | None:
        """The number of coordinators according to ZooKeeper; None if it does not say."""
        path = "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign"
        node = self.life.tree.nodes.get(path)
        return None if node is None else int(json.loads(node.value)["partitions"])

    def deduplicated_snapshots(self) -> bool:
        """Whether deduplication has a cursor on the topic of snapshots."""
        return f"/managed-ledgers/{SNAPSHOTS}/pulsar.dedup" in self.life.tree.nodes

    def transactions(self, *ends: str) -> list[TxnId]:
        """Run transactions in sequence; each publishes a message with the name of its outcome."""

        async def made() -> list[TxnId]:
            ids = []
            for end in ends:
                txn = await self.begin(self.broker)
                await self.send(self.broker, ORDERS, end.encode(), txn)
                if end != "open":
                    await (txn.commit() if end == "commit" else txn.abort())
                ids.append(TxnId(*txn.txn_id))
            return ids

        found: list[TxnId] = self.call(made())
        return found


@pytest.fixture
def leaving() -> Iterator[Leaving]:
    cluster = Leaving(0)
    yield cluster
    cluster.close()


@pytest.fixture
def deduplicating() -> Iterator[Leaving]:
    cluster = Leaving(0, broker_deduplication_enabled=True)
    yield cluster
    cluster.close()


def snapshot_of(entry: bytes) -> tuple[str, str, list[TxnId], Position]:
    """The snapshot's key, topic, aborted transactions, and last position."""
    data = Reader(payload_of(entry), "a snapshot")

    def long() -> int:
        value = data.number()
        return value >> 1 ^ -(value & 1)

    assert long() == 1
    aborted = []
    while count := long():
        for _ in range(count):
            _, _, least, most = long(), long(), long(), long()
            aborted.append(TxnId(most, least))
    entry_id, ledger_id = long(), long()
    assert long() == 1
    long()
    topic = payload_of(entry)[-len(ORDERS) :].decode()
    return parse_metadata(entry).partition_key, topic, aborted, Position(ledger_id, entry_id)


def test_aborted_transactions_are_named_in_a_snapshot(leaving: Leaving) -> None:
    _, first, _, second = leaving.transactions("commit", "abort", "commit", "abort")
    leaving.end_broker()
    done = leaving.hand_over()
    assert (done.coordinators, done.topics, done.snapshots, done.hidden) == (1, 1, 1, 2)
    (entry,) = leaving.entries(SNAPSHOTS)
    key, topic, aborted, up_to = snapshot_of(entry)
    assert (key, topic, aborted) == (ORDERS, ORDERS, [first, second])
    assert up_to.entry_id == 7  # four messages and four markers


def test_a_topic_without_aborted_transactions_needs_no_snapshot(leaving: Leaving) -> None:
    leaving.transactions("commit")
    leaving.end_broker()
    done = leaving.hand_over()
    assert (done.topics, done.snapshots) == (1, 0)
    assert leaving.entries(SNAPSHOTS) == []


def test_a_coordinator_s_log_contains_the_highest_id_and_no_transaction(leaving: Leaving) -> None:
    *_, last = leaving.transactions("commit", "abort")
    leaving.end_broker()
    leaving.hand_over()
    entries = leaving.entries(log_name(0), "transaction.subscription")
    assert [decode_pulsar(entry, "test").highest_id for entry in entries] == [last.least]
    kinds = {type(each).__name__ for e in entries for each in decode_pulsar(e, "test").records}
    assert kinds <= {"IdsUsed", "OutcomeMark"}


def test_apache_s_brokers_find_as_many_coordinators(leaving: Leaving) -> None:
    leaving.transactions("commit")
    leaving.end_broker()
    leaving.hand_over()
    assert leaving.coordinators_in_zookeeper() == leaving.config.transaction_coordinators


def test_open_transactions_are_named_and_prevent_it(leaving: Leaving) -> None:
    (txn_id,) = leaving.transactions("open")
    leaving.end_broker()
    with pytest.raises(NotHandedOver) as refused:
        leaving.hand_over()
    said = str(refused.value)
    assert f"1 transactions are open: {txn_id}, which times out in" in said
    assert "--wait" in said and "--abort-open" in said


def test_open_transactions_time_out_while_it_waits(leaving: Leaving) -> None:
    (txn_id,) = leaving.transactions("open")
    leaving.end_broker()
    done = leaving.hand_over(wait_s=120)
    assert (done.aborted, done.hidden) == (0, 1)
    (entry,) = leaving.entries(SNAPSHOTS)
    assert snapshot_of(entry)[2] == [txn_id]
    assert leaving.lines[0] == "1 transactions to end, 1 of them open"


def test_open_transactions_are_aborted_on_request(leaving: Leaving) -> None:
    (txn_id,) = leaving.transactions("open")
    leaving.end_broker()
    done = leaving.hand_over(abort_open=True)
    assert (done.aborted, done.hidden) == (1, 1)
    (entry,) = leaving.entries(SNAPSHOTS)
    assert snapshot_of(entry)[2] == [txn_id]


@pytest.mark.parametrize("options", [{}, {"abort_open": True}, {"wait_s": 120.0}])
def test_prepared_transactions_are_named_and_prevent_it(
    leaving: Leaving, options: dict[str, Any]
) -> None:
    """Only their owner knows what a database has decided: no option ends them."""

    async def prepare() -> TxnId:
        txn = await leaving.begin(leaving.broker)
        await leaving.send(leaving.broker, ORDERS, b"in", txn)
        await txn.prepare("db")
        return TxnId(*txn.txn_id)

    txn_id = leaving.call(prepare())
    leaving.end_broker()
    with pytest.raises(NotHandedOver, match="1 transactions are prepared") as refused:
        leaving.hand_over(**options)
    assert f"abort: {txn_id}. Start the brokers again" in str(refused.value)


def test_topics_that_kafka_s_clients_have_used_are_named(leaving: Leaving) -> None:
    async def used() -> None:
        topic = await leaving.broker.broker.topics.get(TopicName.parse(ORDERS))
        await topic.ledger.set_property(OFFSETS, "")

    leaving.transactions("commit")
    leaving.call(used())
    leaving.end_broker()
    assert list(map(str, leaving.hand_over().of_kafka)) == [ORDERS]


def test_a_repetition_finds_everything_done(leaving: Leaving) -> None:
    leaving.transactions("abort")
    leaving.end_broker()
    leaving.hand_over()
    leaving.hand_over()
    first, second = map(snapshot_of, leaving.entries(SNAPSHOTS))
    assert first == second


def test_deduplication_never_has_a_cursor_on_a_system_topic(deduplicating: Leaving) -> None:
    """Apache's brokers would trim the snapshots that the cursor has passed, unread."""
    leaving = deduplicating
    leaving.transactions("abort")
    leaving.end_broker()
    leaving.hand_over()
    assert not leaving.deduplicated_snapshots()
    broker = leaving.start("two")
    topic = TopicName.of_ledger(SNAPSHOTS)
    for name in (topic, COORDINATOR):
        leaving.take(broker, name)
    leaving.call(leaving.read(broker, str(topic)))
    leaving.crash(broker)
    leaving.world.sleep(30)
    leaving.hand_over()
    assert not leaving.deduplicated_snapshots()
    assert len(leaving.entries(SNAPSHOTS)) == 2


def test_a_cursor_of_deduplication_from_an_earlier_version_goes(deduplicating: Leaving) -> None:
    leaving = deduplicating
    leaving.transactions("commit")
    broker = leaving.broker
    metadata = broker.broker.metadata

    async def deduplicated() -> None:
        await metadata.put(f"/deduplication/{SNAPSHOTS}", encode_head(Position(3, 4)))

    leaving.world.call(broker.node, deduplicated())
    assert leaving.deduplicated_snapshots()
    leaving.end_broker()
    leaving.hand_over()
    assert not leaving.deduplicated_snapshots()


def test_topics_with_policies_of_their_own_are_named(leaving: Leaving) -> None:
    """Apache Pulsar's brokers keep these policies elsewhere."""
    one, two = map(TopicName.parse, (ORDERS, "persistent://public/default/bills"))
    policies = leaving.broker.broker.topics.policies
    for name in (one, two):
        leaving.call(leaving.send(leaving.broker, str(name), b"x"))
        leaving.world.call(
            leaving.broker.node, policies.set_for_topic(name, MAX_PRODUCERS, 3, name == one)
        )
    leaving.world.call(leaving.broker.node, policies.set_for_topic(two, MAX_PRODUCERS, None))
    leaving.end_broker()
    assert leaving.hand_over().with_policies == [one]
    assert _said_of_policies([one] * 52).endswith(
        f"topicPolicies: {ORDERS}" + f", {ORDERS}" * 49 + " and 2 more"
    )


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.5, 1.0, 2.0])
def test_it_may_be_killed_and_repeated(leaving: Leaving, after_s: float) -> None:
    _, txn_id, _ = leaving.transactions("commit", "abort", "open")
    leaving.end_broker()
    node = leaving._node()
    node.create_task(leaving._hand_over(0.0, True))
    leaving.world.sleep(after_s)
    node.crash()
    leaving.world.sleep(30)
    leaving._runs += 1
    leaving.hand_over(abort_open=True)
    assert txn_id in snapshot_of(leaving.entries(SNAPSHOTS)[-1])[2]


def test_a_broker_that_runs_prevents_it(leaving: Leaving) -> None:
    with pytest.raises(DirectoryInUse, match="brokers use the cluster: localhost:"):
        leaving.hand_over()


def test_our_brokers_may_go_on_afterwards(leaving: Leaving) -> None:
    leaving.transactions("commit", "abort")
    leaving.end_broker()
    leaving.hand_over()
    broker: TxnBroker = leaving.start("two")
    leaving.serve_coordinator(broker)
    leaving.take(broker, TopicName.parse(ORDERS))
    assert leaving.call(leaving.read(broker, ORDERS)) == [b"commit"]


@pytest.mark.parametrize(
    ("aborted", "stored"),
    [
        ([Aborted(TxnId(1, 2), Position(3, 4))], "02020806040200d8040e02"),
        ([], "0200d8040e02"),
    ],
)
def test_a_snapshot_is_what_apache_s_schema_encodes(aborted: list[Aborted], stored: str) -> None:
    topic = "persistent://public/default/t"
    found = snapshot(TopicName.parse(topic), Position(7, 300), aborted)
    assert found.hex() == stored + "3a" + topic.encode().hex()


@pytest.mark.parametrize(
    ("text", "found"), [("", 0), ("hello", 99162322), ("polygenelubricants", 0)]
)
def test_a_key_s_partition_is_the_java_client_s(text: str, found: int) -> None:
    assert _java_hash(text) == found
