"""What must be the same on all brokers is checked when one starts; the number of coordinators is
that of the cluster.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from txn_cluster import TxnCluster

from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.cluster.live_brokers import DifferentSettings


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, transaction_coordinators=4)
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"cluster_name": "west"}, "clusterName=west here, but clusterName=standalone on broker"),
        ({"managed_ledger_password": "x"}, "managedLedgerPassword="),
        ({"transaction_coordinators": 16}, "transactionCoordinators=16 here, but .*=4 on broker"),
    ],
)
def test_a_broker_that_differs_does_not_start_beside_others(
    cluster: TxnCluster, setting: dict[str, object], said: str
) -> None:
    cluster.start("one")
    before, cluster.config = cluster.config, replace(cluster.config, **setting)
    with pytest.raises(DifferentSettings, match=said) as refused:
        cluster.start("two")
    assert "stop all brokers" in str(refused.value)
    cluster.config = before
    three = cluster.start("three")
    assert len(three.membership.brokers()) == 2, "the refused one has left"


def test_all_brokers_serve_the_number_of_coordinators_in_the_metadata(cluster: TxnCluster) -> None:
    one = cluster.start("one")
    cluster.config = replace(cluster.config, transaction_coordinators=2)
    two = cluster.start("two")
    for each in (one, two):
        assert each.coordinators.count == 4
        assert each.broker.topics.tenants.partitions(COORDINATOR_ASSIGN) == 4


def test_a_larger_number_counts_once_no_broker_runs_with_the_former(cluster: TxnCluster) -> None:
    cluster.crash(cluster.start("one"))
    cluster.world.sleep(30)
    cluster.config = replace(cluster.config, transaction_coordinators=16)
    one, two = cluster.start("one"), cluster.start("two")
    assert (one.coordinators.count, two.coordinators.count) == (16, 16)
