"""The Rust crate `pulsar` with the broker; the tests are in Rust, in `rust/`."""

from collections.abc import Iterator

import httpx
import pytest
from official_rust import BUILD_TIMEOUT_S, RustTest, built, run_rust_test, rust_tests
from surroundings import surroundings

pytestmark = [pytest.mark.rust, pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT_S)]

PARTITIONED = "/admin/v2/persistent/public/default/rust-partitioned/partitions"


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    built()
    with surroundings() as (broker, variables):
        assert httpx.put(broker.admin_url + PARTITIONED, json=4).status_code == 204
        yield variables


@pytest.mark.parametrize("test", list(rust_tests()), ids=lambda test: test.name)
def test_in_rust(variables: dict[str, str], test: RustTest) -> None:
    run_rust_test(test.name, variables)
