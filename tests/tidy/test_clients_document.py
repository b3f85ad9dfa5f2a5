"""docs/clients.md lists exactly what the tests in tests/compat show."""

from generate_clients_document import (
    ABSENT,
    CLIENTS,
    DOCUMENT,
    FEATURES,
    KAFKA_CLIENTS,
    KAFKA_FEATURES,
    OTHERS,
    document,
    go_declarations,
    shown,
    shown_of_kafka,
)
from official_node import node_tests
from official_rust import rust_tests

NAMED = {feature for features in FEATURES.values() for feature in features}


def test_the_page_is_what_the_tests_say_of_themselves() -> None:
    assert DOCUMENT.read_text() == document(), "run `make clients`"


def test_every_feature_has_a_test_or_a_reason_for_each_client() -> None:
    every = {(feature, client) for feature in NAMED for client in CLIENTS}
    assert every - set(shown()) == set(ABSENT)


def test_every_other_client_shows_something() -> None:
    assert set(OTHERS) <= {client for _, client in shown()}


def test_tests_name_features_that_the_page_knows() -> None:
    assert {feature for feature, _ in shown()} <= NAMED


def test_every_test_in_go_says_what_it_shows() -> None:
    assert [test.name for test in go_declarations() if not test.features] == []


def test_every_test_in_rust_and_javascript_says_what_it_shows() -> None:
    rust, node = list(rust_tests()), list(node_tests())
    assert rust and node
    assert [test.name for test in [*rust, *node] if not test.features] == []


def test_tests_name_clients_and_features_of_kafka_that_the_page_knows() -> None:
    found = shown_of_kafka()
    assert {feature for feature, _ in found} == set(KAFKA_FEATURES)
    assert {client for _, client in found} == set(KAFKA_CLIENTS)
