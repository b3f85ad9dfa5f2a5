"""What the JavaScript client pulsar-flex does with the broker: the tests of `node/compat.js`."""

from collections.abc import Iterator

import pytest
from credentials import TOKEN_SETTINGS, token
from official_node import INSTALL_TIMEOUT_S, NodeTest, node_tests, packages, run_node_test

import pybroker.testing

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(INSTALL_TIMEOUT_S)]


@pytest.fixture(scope="module")
def surroundings() -> Iterator[dict[str, str]]:
    packages()
    with (
        pybroker.testing.broker() as broker,
        pybroker.testing.broker(**TOKEN_SETTINGS) as secured,
    ):
        yield {
            "SERVICE_URL": broker.service_url,
            "SECURED_URL": secured.service_url,
            "TOKEN": token("alice"),
        }


@pytest.mark.parametrize("test", list(node_tests()), ids=lambda test: test.name)
def test_in_javascript(surroundings: dict[str, str], test: NodeTest) -> None:
    run_node_test(test.name, surroundings)
