"""Faults of a cluster. They are drawn before the start; the broker that one hits, when it comes."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sim_scenario import ACTIVE_S, Scenario

from pybroker.simulation.faults import Fault

if TYPE_CHECKING:
    from brokers.cluster import SimulatedCluster

# A stalled broker's session expires before it continues, or just survives; `SESSION_MS` is 3 s.
STALLS_S: Final = (0.5, 2.9, 3.2, 5.0, 9.0)
KINDS: Final = (
    *("broker crash", "broker crash", "broker stop", "broker stalls", "broker stalls"),
    *("bookie crash", "bookie crash", "zookeeper crash", "session ends"),
    *("bundle moves", "bundle moves", "reset", "reset", "silence", "client crash"),
)
OUTCOME_RETENTION_S: Final = 200.0
BEGINS_S: Final = 3.0  # the bookies are up by then


def prepared(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario for a cluster: no disk, and other faults."""
    count = rng.choice((0, 1, 2, 3, 4, 6))
    faults = sorted((_draw(rng) for _ in range(count)), key=lambda fault: fault.at_s)
    last = rng.choice((None, "crash", "stop", "stop"))
    return replace(
        scenario,
        storage={},
        faults=tuple(faults),
        last_restart=None if last is None else Fault(0.0, last, down_s=rng.choice((0.0, 0.1, 4.0))),
        outcome_retention_s=OUTCOME_RETENTION_S,
        last_rest_s=rng.choice((0.0, 0.0, 0.0, 1.5 * OUTCOME_RETENTION_S)),
    )


def _draw(rng: random.Random) -> Fault:
    kind = rng.choice(KINDS)
    return Fault(
        at_s=rng.random() ** 2 * ACTIVE_S,
        kind=kind,
        silent=rng.random() < 0.3,
        down_s=rng.choice(STALLS_S if kind == "broker stalls" else (0.0, 0.1, 0.5, 2.0, 4.0)),
    )


def happen(cluster: "SimulatedCluster", fault: Fault) -> None:
    DEEDS[fault.kind](cluster, fault)


def _broker_crash(cluster: "SimulatedCluster", fault: Fault) -> None:
    member = cluster.some_member()
    member.note(f"is killed{', silently' * fault.silent}")
    member.end(fault.down_s, fault.silent)


def _broker_stop(cluster: "SimulatedCluster", fault: Fault) -> None:
    cluster.some_member().stop(fault.down_s)


def _broker_stalls(cluster: "SimulatedCluster", fault: Fault) -> None:
    member = cluster.some_member()
    member.note(f"stalls for {fault.down_s} s")
    member.stall(fault.down_s)


def _bookie_crash(cluster: "SimulatedCluster", fault: Fault) -> None:
    port = cluster.rng.choice(list(cluster.machines.disks))
    cluster.note(f"bookie {port} is killed for {fault.down_s} s")
    cluster.machines.crash_bookie(port, fault.silent, fault.down_s)


def _zookeeper_crash(cluster: "SimulatedCluster", fault: Fault) -> None:
    cluster.note(f"zookeeper is killed for {fault.down_s} s")
    cluster.machines.crash_zookeeper(fault.down_s)


def _session_ends(cluster: "SimulatedCluster", fault: Fault) -> None:
    """ZooKeeper expires the session while the broker works."""
    member = cluster.some_member()
    if member.serving and not cluster.machines.zookeeper.dead:
        member.note("loses its session")
        cluster.machines.server.expire(member.session_id)


def _bundle_moves(cluster: "SimulatedCluster", fault: Fault) -> None:
    move_bundle(cluster, cluster.rng)


def move_bundle(cluster: "SimulatedCluster", rng: random.Random) -> None:
    """Unloads a bundle. Another broker may take it at once."""
    owners = [member for member in cluster.members if member.owned() and not member.is_stalled]
    if not owners:
        return
    member = rng.choice(owners)
    bundle = rng.choice(sorted(member.owned(), key=str))
    member.note(f"gives {bundle} back")
    member.release(bundle)
    heirs = [each for each in cluster.members if each.serving and each is not member]
    topics = [each for each in cluster.topics if bundle.holds(each)]
    if heirs and topics and rng.random() < 0.7:
        heir, topic = rng.choice(heirs), str(topics[0])
        cluster.world.after(rng.choice((0.01, 0.3)), _taken, heir, topic)


def _taken(heir: Any, topic: str) -> None:
    if heir.serving:
        heir.take(topic)


DEEDS: Final[dict[str, Callable[["SimulatedCluster", Fault], None]]] = {
    "broker crash": _broker_crash,
    "broker stop": _broker_stop,
    "broker stalls": _broker_stalls,
    "bookie crash": _bookie_crash,
    "zookeeper crash": _zookeeper_crash,
    "session ends": _session_ends,
    "bundle moves": _bundle_moves,
}
