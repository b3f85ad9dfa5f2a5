"""Advertised listeners: who asks by name is told that one's addresses."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.listeners import BadListeners, parse_listeners
from pybroker.wire import pulsar_api_pb2 as pb

LISTENERS = (
    "inside:pulsar://in:6650, inside:pulsar+ssl://in:6651,"
    "outside:pulsar://out:16650,outside:http://out:18080"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with pybroker.testing.broker(advertised_listeners=LISTENERS, http=True) as broker:
        yield broker


def lookup(broker: Any, listener: str) -> Any:
    with RawClient(broker.service_url) as raw:
        asked = pb.CommandLookupTopic(topic="t", advertised_listener_name=listener)
        return raw.request(pb.BaseCommand.LOOKUP, "lookupTopic", asked)


def test_a_listener_is_told_by_name_and_the_first_without_one(broker: Any) -> None:
    answers = [lookup(broker, name) for name in ("inside", "outside", "")]
    urls = [(answer.brokerServiceUrl, answer.brokerServiceUrlTls) for answer in answers]
    inside = ("pulsar://in:6650", "pulsar+ssl://in:6651")
    assert urls == [inside, ("pulsar://out:16650", ""), inside]


def test_an_unknown_listener_is_not_there_in_the_words_that_clients_know(broker: Any) -> None:
    answer = lookup(broker, "nowhere")
    assert answer.error == pb.ServiceNotReady
    assert "the broker do not have nowhere listener" in answer.message


def test_http_lookups_take_a_parameter_or_a_header(broker: Any) -> None:
    with httpx.Client(base_url=broker.admin_url) as admin:
        path = "/lookup/v2/topic/persistent/public/default/t"
        by_query = admin.get(path, params={"listenerName": "outside"}).json()
        by_header = admin.get(path, headers={"X-Pulsar-ListenerName": "outside"}).json()
        unknown = admin.get(path, params={"listenerName": "nowhere"})
    assert by_query == by_header
    assert by_query["brokerUrl"] == "pulsar://out:16650"
    assert by_query["httpUrl"] == "http://out:18080"
    assert unknown.status_code == 400


def test_the_internal_listener_is_chosen_by_name() -> None:
    assert parse_listeners(LISTENERS, "outside").named("") == parse_listeners(LISTENERS).named(
        "outside"
    )
    assert parse_listeners("").named("") is None


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        ("pulsar://in:6650", ""),
        ("a:ftp://in:6650", ""),
        ("a:pulsar://in", ""),
        ("a:pulsar://in:99999", ""),
        ("a:pulsar://in:1,a:pulsar://in:2", ""),
        (LISTENERS, "nowhere"),
    ],
)
def test_what_is_no_listener_stops_the_start(text: str, internal: str) -> None:
    with pytest.raises(BadListeners):
        parse_listeners(text, internal)
