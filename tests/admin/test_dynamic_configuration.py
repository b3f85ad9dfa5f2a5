"""Settings of broker.conf that change while the broker runs."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest
from described import check_described
from raw_client import RawClient

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.dynamic_configuration import DYNAMIC
from pybroker.broker.policies.policy import Key, Policy
from pybroker.broker.policies.table import POLICIES
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

PATH = "/admin/v2/brokers/configuration"
TOPIC = "persistent://public/default/t"
# A fallback of policies that is read only at the start: the interval of the housekeeper's rounds.
READ_ONCE = {"broker_delete_inactive_topics_frequency_seconds"}
OF_NO_POLICY = {
    "prepare_transaction_roles",
    "max_prepared_transactions_per_principal",
    "scalable_topic_entry_bucket_budget",
    "scalable_topic_entry_bucket_max_per_segment",
}


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, max_consumers_per_topic=7) as running:
        yield running


@pytest.fixture
def http(broker: RunningBroker) -> Iterator[httpx.Client]:
    hooks = {"response": [check_described]}
    with httpx.Client(base_url=broker.admin_url, event_hooks=hooks) as client:
        yield client


class Recorded:
    """A configuration that records which of its fields are read."""

    def __init__(self) -> None:
        self._config, self.read = BrokerConfig(), set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._config, name)


def keys_of(policy: Policy[Any]) -> set[str]:
    if isinstance(policy.broker, str):
        return {policy.broker}
    if callable(policy.broker):
        recorded = Recorded()
        policy.broker(recorded)  # type: ignore[arg-type]
        return recorded.read
    acting = {name: of for name, of in policy.broker.items() if name not in policy.off_fields}
    return {of.name for of in acting.values() if isinstance(of, Key)}


def test_every_key_that_a_policy_falls_back_to_is_dynamic() -> None:
    found = set().union(*(keys_of(policy) for policy in POLICIES if not policy.off))
    assert found - READ_ONCE == set(DYNAMIC) - OF_NO_POLICY
    assert set(DYNAMIC) <= {field.name for field in fields(BrokerConfig)}


def values(http: httpx.Client) -> Any:
    return http.get(f"{PATH}/values").json()


def test_what_is_set_is_listed_shown_and_survives_a_crash(
    broker: RunningBroker, http: httpx.Client
) -> None:
    assert "maxConsumersPerTopic" in http.get(PATH).json()
    assert values(http) == {}
    assert http.post(f"{PATH}/maxConsumersPerTopic/1").status_code == 204
    assert http.post(f"{PATH}/subscriptionTypesEnabled/Shared%2CFailover").status_code == 204
    both = {"maxConsumersPerTopic": "1", "subscriptionTypesEnabled": "Shared,Failover"}
    assert values(http) == both
    broker.kill_and_restart()
    assert httpx.get(f"{broker.admin_url}{PATH}/values").json() == both
    runtime = httpx.get(f"{broker.admin_url}{PATH}/runtime").json()
    assert {key: runtime[key] for key in both} == both


def test_a_limit_holds_at_once_and_the_files_holds_again_when_it_is_deleted(
    broker: RunningBroker, http: httpx.Client
) -> None:
    with RawClient(broker.service_url) as raw:
        raw.create_producer(TOPIC, 1)
        assert http.post(f"{PATH}/maxProducersPerTopic/1").status_code == 204
        assert isinstance(raw.ask_for_producer(TOPIC, 2), pb.CommandError)
        assert http.delete(f"{PATH}/maxProducersPerTopic").status_code == 204
        raw.create_producer(TOPIC, 3)
    assert values(http) == {}
    assert http.post(f"{PATH}/maxConsumersPerTopic/1").status_code == 204
    http.delete(f"{PATH}/maxConsumersPerTopic")
    assert http.get(f"{PATH}/runtime").json()["maxConsumersPerTopic"] == "7"


def test_topics_that_are_loaded_are_told_before_the_answer(
    broker: RunningBroker, http: httpx.Client
) -> None:
    with RawClient(broker.service_url) as raw:
        raw.create_producer(TOPIC)
        assert http.post(f"{PATH}/encryptionRequireOnProducer/true").status_code == 204
        assert raw.receive(pb.BaseCommand.CLOSE_PRODUCER).producer_id == 1


def test_a_policy_counts_more_than_what_is_set_for_the_broker(
    broker: RunningBroker, http: httpx.Client
) -> None:
    namespace = "/admin/v2/namespaces/public/default"
    http.post(f"{namespace}/maxProducersPerTopic", json=2)
    assert http.post(f"{PATH}/maxProducersPerTopic/1").status_code == 204
    with RawClient(broker.service_url) as raw:
        raw.create_producer(TOPIC, 1)
        raw.create_producer(TOPIC, 2)
        assert isinstance(raw.ask_for_producer(TOPIC, 3), pb.CommandError)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("maxTenants", "3", "configuration file"),
        ("webServicePort", "8081", "configuration file"),
        ("maxProducersPerTopic", "many", "whole number"),
        ("maxProducersPerTopic", "-1", "at least 0"),
        ("maxProducersPerTopic", "%20", "needs a value"),
        ("allowAutoTopicCreationType", "round", "must be one of"),
        ("max_producers_per_topic", "3", "configuration file"),
    ],
)
def test_what_cannot_hold_is_refused_and_not_kept(
    http: httpx.Client, key: str, value: str, says: str
) -> None:
    refused = http.post(f"{PATH}/{key}/{value}")
    assert (refused.status_code, says in refused.text) == (412, True), refused.text
    assert values(http) == {}


def test_a_key_that_is_not_dynamic_cannot_be_taken_back(http: httpx.Client) -> None:
    assert http.delete(f"{PATH}/maxTenants").status_code == 412
    assert http.delete(f"{PATH}/maxProducersPerTopic").status_code == 204  # it was not set


def test_a_port_that_there_is_not_is_shown_as_empty(http: httpx.Client) -> None:
    runtime = http.get(f"{PATH}/runtime").json()
    assert runtime["webServicePortTls"] == ""
    assert "None" not in runtime.values()
