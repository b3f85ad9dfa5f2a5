"""franz-go, a client of Kafka's, with the broker; the tests are in Go, in `go/kafka/`."""

from collections.abc import Iterator

import pytest
from official_go import BUILD_TIMEOUT_S, GoTest, built, franz_tests, run_go_test

import pybroker.testing

pytestmark = [pytest.mark.go, pytest.mark.timeout(BUILD_TIMEOUT_S)]


@pytest.fixture(scope="module")
def surroundings() -> Iterator[dict[str, str]]:
    built("kafka")
    with pybroker.testing.broker(kafka=True) as broker:
        yield {"SERVICE_URL": broker.service_url, "KAFKA_BOOTSTRAP": broker.kafka_bootstrap}


@pytest.mark.parametrize("test", list(franz_tests()), ids=lambda test: test.name)
def test_in_go(surroundings: dict[str, str], test: GoTest) -> None:
    run_go_test(test.name, surroundings, "kafka")
