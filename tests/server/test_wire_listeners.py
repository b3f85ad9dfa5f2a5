"""Advertised listeners: a client that asks for one by name is told its addresses."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.listeners import BadListeners, Listener, parse_listeners
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
    assert [answer.HasField("brokerServiceUrlTls") for answer in answers] == [True, False, True]


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


OWN = Listener("pulsar://own:1", "pulsar+ssl://own:2", "http://own:3", "https://own:4")
OWN_WEB = (OWN.http_url, OWN.http_url_tls)


def test_the_internal_listener_is_chosen_by_name() -> None:
    told = parse_listeners(LISTENERS, "outside").told("", OWN)
    assert told.broker_url == "pulsar://out:16650"
    assert parse_listeners("").told("", OWN) == OWN


def test_a_client_that_asks_for_no_listener_finds_each_protocol_at_the_first_that_has_it() -> None:
    """One protocol per listener, as in the configuration of the Node client's tests."""
    text = "plain:pulsar://a:1,tls:pulsar+ssl://a:2,other:pulsar+ssl://b:2,web:https://a:4"
    listeners = parse_listeners(text)
    urls = ("pulsar://a:1", "pulsar+ssl://a:2", "http://own:3", "https://a:4")
    assert listeners.told("", OWN) == Listener(*urls)
    assert parse_listeners(text, "other").told("", OWN).broker_url_tls == "pulsar+ssl://b:2"
    assert parse_listeners(text, "other").told("", OWN).broker_url == "pulsar://a:1"
    only_plain = parse_listeners("plain:pulsar://a:1").told("", OWN)
    assert only_plain.broker_url_tls == "pulsar+ssl://own:2"


def test_who_asks_for_a_listener_by_name_gets_no_other_ones_address() -> None:
    listeners = parse_listeners("plain:pulsar://a:1,tls:pulsar+ssl://a:2,tls:https://a:4")
    assert listeners.told("plain", OWN) == Listener("pulsar://a:1", "", *OWN_WEB)
    assert listeners.told("tls", OWN) == Listener("", "pulsar+ssl://a:2", OWN_WEB[0], "https://a:4")


def test_the_default_name_of_apache_pulsar_5_needs_no_listeners() -> None:
    assert parse_listeners("", "internal") == parse_listeners("")


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        ("pulsar://in:6650", ""),
        ("a:ftp://in:6650", ""),
        ("a:pulsar://in", ""),
        ("a:pulsar://in:99999", ""),
        ("a:pulsar://[::1:6650", ""),
        ("a:pulsar://in:1,a:pulsar://in:2", ""),
        (LISTENERS, "nowhere"),
        (LISTENERS, "internal"),
        ("", "nowhere"),
    ],
)
def test_what_is_no_listener_stops_the_start(text: str, internal: str) -> None:
    with pytest.raises(BadListeners):
        parse_listeners(text, internal)
