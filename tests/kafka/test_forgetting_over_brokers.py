"""Offsets of a deleted topic in logs of other brokers, which may move while they are asked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.kafka.offsets.logs import topic_at
from pybroker.process import kafka_forgetting
from pybroker.process.kafka_forgetting import Forgetting

BEGUN = (0, 3, 7, 9)


class Cluster:
    """Implements what `Forgetting` uses of a membership and of the offsets."""

    def __init__(self, **owners: tuple[int, ...]) -> None:
        self.owners = {name: set(logs) for name, logs in owners.items()}
        self.asked: list[tuple[str, str, str]] = []
        self.answers: dict[str, Reply] = {}
        self.foreign: set[str] = set()
        self.before_answer: Callable[[str], None] = lambda broker: None

    @property
    def ownership(self) -> "Cluster":
        return self

    @property
    def others(self) -> "Cluster":
        return self

    def begun(self) -> list[Any]:
        return [topic_at(each) for each in BEGUN]

    async def forget_here(self, topic: str, partition: int | None) -> list[int]:
        return sorted(self.owners.get("here", ()))

    async def owner_of(self, name: Any) -> BrokerAddress | None:
        for owner, logs in self.owners.items():
            if name.partition in logs:
                return None if owner == "here" else BrokerAddress(owner, http_url=owner)
        self.owners.setdefault("here", set()).add(name.partition)
        return None

    def id_of(self, address: BrokerAddress) -> str:
        return address.broker_url

    def is_foreign(self, broker: str) -> bool:
        return broker in self.foreign

    async def ask(self, broker: BrokerAddress, method: str, target: str) -> Reply:
        name = broker.broker_url
        self.asked.append((name, method, target))
        self.before_answer(name)
        known = self.answers.get(name)
        return known or Reply(200, json.dumps(sorted(self.owners[name])).encode())

    def forget(self, topic: str = "orders", partition: int | None = None) -> list[str]:
        """The brokers that were asked."""
        fake: Any = self
        asyncio.run(Forgetting(fake, fake)(topic, partition))
        return [name for name, _, _ in self.asked]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_forgetting, "_PAUSE_S", 0)
    monkeypatch.setattr(kafka_forgetting, "_WAIT_S", 0.02)


def test_each_broker_is_asked_once() -> None:
    assert Cluster(here=(0,), one=(3, 7), two=(9,)).forget() == ["one", "two"]


def test_nobody_is_asked_who_has_no_log() -> None:
    assert Cluster(here=BEGUN, one=(2,)).forget() == []


def test_a_partition_is_named() -> None:
    cluster = Cluster(here=(0, 3, 7), one=(9,))
    cluster.forget("a.b", 4)
    assert cluster.asked == [("one", "DELETE", "/admin/v3/kafka/offsets/a.b?partition=4")]


def test_a_log_that_nobody_serves_is_taken() -> None:
    assert Cluster(here=(0, 3, 7)).forget() == []


def test_a_log_that_moves_meanwhile_is_asked_for_again() -> None:
    cluster = Cluster(here=(0,), one=(3, 7), two=(9,))

    def move(broker: str) -> None:
        if broker == "one" and 7 in cluster.owners["one"]:
            cluster.owners["one"].remove(7)
            cluster.owners["two"].add(7)

    cluster.before_answer = move
    assert cluster.forget() == ["one", "two"]

    again = Cluster(here=(0,), one=(3,), two=(7, 9))

    def move_back(broker: str) -> None:
        if broker == "two" and 7 in again.owners["two"]:
            again.owners["two"].remove(7)
            again.owners["one"].add(7)

    again.before_answer = move_back
    assert again.forget() == ["one", "two", "one"]


@pytest.mark.parametrize("reply", [Reply(503), Reply(200, b"[]"), Reply(200, b"what")])
def test_the_deletion_does_not_end_before_all_logs_are_asked(reply: Reply) -> None:
    cluster = Cluster(here=(0, 3), one=(7, 9))
    cluster.answers["one"] = reply
    with pytest.raises(ServiceNotReady, match="still have offsets of orders"):
        cluster.forget()


def test_who_cannot_be_asked_does_not_hold_up_the_deletion() -> None:
    cluster = Cluster(here=(0, 3), older=(7,), apaches=(9,))
    cluster.answers["older"] = Reply(404)
    cluster.foreign = {"apaches"}
    assert cluster.forget() == ["older"]
