"""What one seed does: topics, clients and faults, all drawn before the start.

Scenarios are small on purpose. Bugs need few things that meet, not many things, and small worlds
are fast. Times are virtual seconds from the start of the work.
"""

import random
from dataclasses import dataclass

from pybroker.base.configuration.config import BrokerConfig
from pybroker.simulation.faults import Fault

PARTITIONED = "partitioned"
PARTITIONS = 2
CRASHES = ("crash", "crash", "crash", "stop")
OTHERS = ("reset", "reset", "silence", "client crash", "disk full", "sync fails")
FAULTS = CRASHES + OTHERS
OUTCOME_RETENTION_S = 1000.0  # longer than all waits in a simulation but the last
ACTIVE_S = 12.0  # faults come within it; producers are usually done by then


@dataclass(frozen=True, slots=True)
class Scenario:
    deduplication: bool
    coordinators: int
    max_entries_per_ledger: int
    snapshot_transactions: int
    batching: bool
    storage: dict[str, int]  # options of the embedded engine
    topics: tuple[str, ...]  # the inputs
    plain_producers: int
    plain_messages: int
    txn_producers: int
    txns: int
    transformers: tuple[str, ...]  # subscription kinds, each with `members` consumers
    members: int
    plain_consumers: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    # Before the account the broker is restarted, perhaps after outcomes were forgotten.
    last_restart: Fault | None = None
    last_rest_s: float = 0.0
    # Fields that features change.
    # In minutes and in megabytes. The account reads everything from its start, so data is kept
    # forever, or held by a guard.
    retention: int = -1
    guards: tuple[tuple[str, str], ...] = ()  # subscriptions created before everything else
    outcome_retention_s: float = OUTCOME_RETENTION_S
    pending_ack_log_entries: int = 0  # 0: like the other snapshots
    delayed_tick_ms: int = 1000
    delayed_strict: bool = False
    transaction_buffer: str = "logOrder"
    bundle_max_topics: int = 1000  # larger bundles are divided
    kafka: bool = False  # the broker serves Kafka's clients, too
    kafka_rebalance_delay_ms: int = 3000

    @classmethod
    def draw(cls, rng: random.Random) -> "Scenario":
        topics = rng.choice((("one",), ("one", "two"), ("one", PARTITIONED)))
        kinds = ("Exclusive", "Failover", "Shared", "KeyShared")
        return cls(
            deduplication=rng.random() < 0.6,
            coordinators=rng.choice((1, 2)),
            max_entries_per_ledger=rng.choice((8, 30, 50_000)),
            snapshot_transactions=rng.choice((1, 3, 1000)),
            batching=rng.random() < 0.4,
            storage=draw_storage(rng),
            topics=topics,
            plain_producers=rng.randint(1, 2),
            plain_messages=rng.choice((5, 15, 30)),
            txn_producers=rng.randint(1, 2),
            txns=rng.choice((2, 4, 8)),
            transformers=tuple(rng.sample(kinds, rng.choice((0, 1, 1, 2)))),
            members=rng.randint(1, 2),
            plain_consumers=tuple(rng.sample(kinds, rng.choice((0, 1)))),
            faults=tuple(_draw_faults(rng)),
            last_restart=rng.choice((None, _draw_fault(rng, "crash"), _draw_fault(rng, "stop"))),
            last_rest_s=rng.choice((0.0, 1.5 * OUTCOME_RETENTION_S)),
        )

    def broker_config(self) -> BrokerConfig:
        return BrokerConfig(
            # A scenario rests for hours, and then looks for messages published before.
            broker_delete_inactive_topics_enabled=False,
            broker_deduplication_enabled=self.deduplication,
            transaction_buffer=self.transaction_buffer,
            load_balancer_namespace_bundle_max_topics=self.bundle_max_topics,
            broker_deduplication_entries_interval=5,
            transaction_coordinators=self.coordinators,
            managed_ledger_max_entries_per_ledger=self.max_entries_per_ledger,
            managed_ledger_min_ledger_rollover_time_minutes=0,
            default_retention_time_in_minutes=self.retention,
            default_retention_size_in_mb=self.retention,
            transaction_outcome_retention_ms=int(1000 * self.outcome_retention_s),
            transaction_buffer_snapshot_max_transaction_count=self.snapshot_transactions,
            transaction_metadata_snapshot_entries=5 * self.snapshot_transactions,
            delayed_delivery_tick_time_millis=self.delayed_tick_ms,
            is_delayed_delivery_deliver_at_time_strict=self.delayed_strict,
            kafka_group_initial_rebalance_delay_ms=self.kafka_rebalance_delay_ms,
            transaction_pending_ack_log_entries=self.pending_ack_log_entries
            or 5 * self.snapshot_transactions,
        )


def draw_storage(rng: random.Random) -> dict[str, int]:
    """Small journals cause many checkpoints."""
    return {
        "journal_max_bytes": rng.choice((1000, 10_000, 64 * 1024 * 1024)),
        "max_old_journals": rng.choice((1, 2)),
    }


def _draw_faults(rng: random.Random) -> list[Fault]:
    count = rng.choice((0, 1, 1, 2, 2, 3, 5))
    return sorted((_draw_fault(rng) for _ in range(count)), key=lambda fault: fault.at_s)


def _draw_fault(rng: random.Random, kind: str | None = None) -> Fault:
    return Fault(
        at_s=rng.random() ** 2 * ACTIVE_S,
        kind=kind or rng.choice(FAULTS),
        power_cut=rng.random() < 0.6,
        silent=rng.random() < 0.2,
        disk_operation=rng.choice((0, 1, 2, 3, rng.randint(4, 60))),
        down_s=rng.choice((0.0, 0.1, 2.0)),
    )
