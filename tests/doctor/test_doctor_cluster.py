"""The doctor looks at the cluster that metadataStoreUrl names."""

import re
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.base.configuration.config import BrokerConfig
from pybroker.doctor import cluster
from pybroker.doctor.finding import Level


@pytest.fixture
def closed_port() -> Iterator[int]:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_zookeeper_that_does_not_answer_is_an_error(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE_S", 0.5)
    config = BrokerConfig(metadata_store_url=f"zk:127.0.0.1:{closed_port}")
    (found,) = cluster.check_cluster(config)
    assert (found.check, found.level) == ("ZooKeeper", Level.ERROR)
    assert f"127.0.0.1:{closed_port}" in found.advice


def test_keys_that_cannot_take_effect_are_an_error() -> None:
    (found,) = cluster.check_cluster(BrokerConfig(metadata_store_url="zk:nowhere"))
    assert found.level is Level.ERROR
    assert "metadataStoreUrl" in found.found


@pytest.mark.parametrize(
    ("takes", "level", "said"),
    [
        ({"a": True, "b": True, "c": False}, Level.OK, "3 of 3"),
        ({"a": True, "b": True, "c": "c is silent"}, Level.WARNING, "2 of 3 .*c is silent"),
        ({"a": True, "b": True}, Level.WARNING, "2 of 2"),
        ({"a": True, "b": "b is silent"}, Level.ERROR, "1 of 2 .*b is silent"),
        ({}, Level.ERROR, "0 of 0"),
    ],
)
def test_enough_bookies_must_answer(takes: dict[str, bool | str], level: Level, said: str) -> None:
    found = cluster._number(takes, Quorums(3, 3, 2))
    assert found.level is level
    assert bool(found.advice) is (level is not Level.OK)
    assert re.match(said, found.found)


def test_bookies_must_take_the_largest_messages() -> None:
    (found,) = cluster._sizes({"a": True, "b": False}, 1000)
    assert found.level is Level.ERROR
    assert found.found.endswith("are refused by b")
    assert "nettyMaxFrameSizeBytes=1000" in found.advice
    assert [each.level for each in cluster._sizes({"a": True}, 1000)] == [Level.OK]
    assert cluster._sizes({"a": "silent"}, 1000) == []
