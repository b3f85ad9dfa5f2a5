"""What the Rust crate `pulsar` does with the broker; the tests are in Rust, in `rust/`."""

from collections.abc import Iterator

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from official_rust import BUILD_TIMEOUT_S, RustTest, built, run_rust_test, rust_tests

import pybroker.testing

pytestmark = [pytest.mark.rust, pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT_S)]

PARTITIONED = "/admin/v2/persistent/public/default/rust-partitioned/partitions"


@pytest.fixture(scope="module")
def surroundings() -> Iterator[dict[str, str]]:
    built()
    with (
        pybroker.testing.broker(http=True) as broker,
        pybroker.testing.broker(**TOKEN_SETTINGS) as secured,
    ):
        assert httpx.put(broker.admin_url + PARTITIONED, json=4).status_code == 204
        yield {
            "SERVICE_URL": broker.service_url,
            "SECURED_URL": secured.service_url,
            "TOKEN": token("alice"),
        }


@pytest.mark.parametrize("test", list(rust_tests()), ids=lambda test: test.name)
def test_in_rust(surroundings: dict[str, str], test: RustTest) -> None:
    run_rust_test(test.name, surroundings)
