"""The JavaScript client pulsar-flex with the broker: the tests of `node/compat.js`."""

from collections.abc import Iterator

import pytest
from official_node import INSTALL_TIMEOUT_S, NodeTest, node_tests, packages, run_node_test
from surroundings import surroundings

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(INSTALL_TIMEOUT_S)]


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    packages()
    with surroundings() as (_, variables):
        yield variables


@pytest.mark.parametrize("test", list(node_tests()), ids=lambda test: test.name)
def test_in_javascript(variables: dict[str, str], test: NodeTest) -> None:
    run_node_test(test.name, variables)
