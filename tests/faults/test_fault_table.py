"""The table of fault points matches the protocol's steps, and each point is reachable."""

from collections.abc import Iterator, Mapping
from typing import get_args

import fault_tour
import httpx
import pytest

import pybroker.testing
from pybroker.faults import ACTIONS, POINTS, Action
from pybroker.faults.points import (
    COMPLETED,
    DECIDED,
    DELIVER_AFTER,
    MARKER,
    PENDING_ACK,
    PREDICATES,
    RECORDS,
    STEPS,
)
from pybroker.server.handlers import HANDLERS
from pybroker.testing import RunningBroker
from pybroker.transaction.coordinator.ends.participants import Participants
from pybroker.transaction.coordinator.log.records import ChangeStatus, IdsUsed, Record
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.txn_status import UNDECIDED, TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

# PONG asks for nothing, so nothing can fail there. Brokers send the others to each other, and a
# broker with fault points has no peers.
WITHOUT_POINTS = {
    int(pb.BaseCommand.PONG),
    int(pb.BaseCommand.ASK_TRANSACTION),
    int(pb.BaseCommand.TRANSACTION_GROUP),
    int(pb.BaseCommand.FENCE_SESSIONS),
    int(pb.BaseCommand.KAFKA_TRANSACTION),
}
# Records of a log's snapshot, of no transaction.
OF_SNAPSHOTS = {IdsUsed.__name__, OutcomeMark.__name__}


def test_each_command_is_a_step() -> None:
    assert {int(kind) for kind in STEPS} == {int(kind) for kind in HANDLERS} - WITHOUT_POINTS


def test_each_record_of_a_coordinator_is_a_step() -> None:
    records = {record.__name__ for record in get_args(Record)}
    assert records - OF_SNAPSHOTS - {ChangeStatus.__name__} == RECORDS.keys()
    ends = {TxnStatus.COMMITTING, TxnStatus.ABORTING}, {TxnStatus.COMMITTED, TxnStatus.ABORTED}
    assert set().union(*ends) | UNDECIDED == set(TxnStatus), "DECIDED and COMPLETED are all"


def test_each_kind_of_participant_is_a_step() -> None:
    methods = {name for name in vars(Participants) if name.startswith("end_on_")}
    of_methods = {"end_on_partition": MARKER, "end_on_subscription": PENDING_ACK}
    assert methods == of_methods.keys()
    assert all(each.point_before in POINTS for each in (DECIDED, COMPLETED, *of_methods.values()))


def test_each_point_says_in_sentences_what_has_happened_and_what_makes_sense() -> None:
    assert ACTIONS.keys() == set(Action)
    for point in POINTS.values():
        assert point.state[0].isupper() and point.state.endswith("."), point
        assert Action.CRASH in point.actions and set(point.actions) <= set(Action)
        assert set(point.predicates) <= set(PREDICATES)


def in_process(broker: RunningBroker) -> Mapping[str, int]:
    """The number of times that each point's rule matched."""
    rules = {}
    for name in POINTS:
        if name == DELIVER_AFTER:  # `delay` is no action of this point
            rules[name] = broker.faults.inject(name, "cut", after=1_000_000)
        else:
            rules[name] = broker.faults.inject(name, "delay", seconds=0.001)
    fault_tour.take(broker.service_url)
    return {name: rule.matched for name, rule in rules.items()}


def over_http(broker: RunningBroker) -> Mapping[str, int]:
    with httpx.Client(base_url=f"{broker.admin_url}/admin/v3/faults/", timeout=60) as admin:
        for name in POINTS:
            rule = {"point": name, "action": "delay", "seconds": 0.001}
            if name == DELIVER_AFTER:
                rule = {"point": name, "action": "cut", "after": 1_000_000}
            admin.post("rules", json=rule).raise_for_status()
        fault_tour.take(broker.service_url)
        return {rule["point"]: rule["matched"] for rule in admin.get("rules").json()}


@pytest.fixture(scope="module", params=[in_process, over_http], ids=["in process", "over HTTP"])
def matched(request: pytest.FixtureRequest) -> Iterator[Mapping[str, int]]:
    with pybroker.testing.broker(http=True, faults=True) as broker:
        yield request.param(broker)


def test_each_point_is_passed_by_what_it_is_about(matched: Mapping[str, int]) -> None:
    assert [point for point in POINTS if not matched[point]] == []
