"""A strict rule that never strikes fails the test that made it."""

from collections.abc import Iterator

import pytest

import pybroker.testing
from pybroker.client import Client
from pybroker.faults import Faults, NeverStruck
from pybroker.pytest_plugin import pulsar_faults
from pybroker.testing import RunningBroker


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(faults=True) as running:
        yield running


def publish(broker: RunningBroker) -> None:
    with Client(broker.service_url) as client:
        client.create_producer("orders").send(b"one lamp")


def test_a_block_whose_rule_never_struck_fails(broker: RunningBroker) -> None:
    strict = broker.faults.inject(
        "publish.before_receipt", "cut", topic="oders", once=True, strict=True
    )
    with (
        pytest.raises(
            NeverStruck, match=r"cut at publish.before_receipt, topic oders never struck; 0 "
        ),
        strict,
    ):
        publish(broker)
    assert strict.is_removed


def test_a_block_whose_rule_struck_ends_well(broker: RunningBroker) -> None:
    with broker.faults.inject(
        "publish.before_receipt", "cut", topic="orders", once=True, strict=True
    ):
        publish(broker)


def test_an_error_in_the_block_is_not_hidden(broker: RunningBroker) -> None:
    rule = broker.faults.inject("publish.before_receipt", "cut", strict=True)
    with pytest.raises(ZeroDivisionError), rule:
        raise ZeroDivisionError


def test_the_end_of_the_broker_asks_too() -> None:
    with pytest.raises(NeverStruck), pybroker.testing.broker(faults=True) as running:
        running.faults.inject("publish.before_receipt", "cut", strict=True)


def test_an_error_of_the_test_is_not_hidden_by_the_end_of_the_broker() -> None:
    with pytest.raises(ZeroDivisionError), pybroker.testing.broker(faults=True) as running:
        running.faults.inject("publish.before_receipt", "cut", strict=True)
        raise ZeroDivisionError


def test_all_rules_are_removed_though_one_never_struck(broker: RunningBroker) -> None:
    faults: Faults = broker.faults
    faults.inject("publish.before_receipt", "cut", strict=True)
    faults.inject("publish.before_receipt", "cut")
    with pytest.raises(NeverStruck):
        faults.clear_and_check()
    assert faults.rules == ()


def test_the_fixture_fails_at_its_end(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("pybroker.pytest_plugin._broker_of", lambda request: broker)
    fixture = pulsar_faults.__wrapped__(request)
    next(fixture).inject("publish.before_receipt", "cut", strict=True)
    with pytest.raises(NeverStruck):
        next(fixture)
