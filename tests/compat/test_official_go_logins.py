"""The official Go client's ways to log in; the tests are in Go, in `go/logins_test.go`."""

import base64
from collections.abc import Iterator

import pytest
from credentials import SECRET, token
from login_world import PASSWORD, LoginWorld, login_world
from official_go import BUILD_TIMEOUT_S, SOURCES, GoTest, built, go_tests, run_go_test

pytestmark = [pytest.mark.go, pytest.mark.timeout(BUILD_TIMEOUT_S)]


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginWorld]:
    built()
    with login_world(tmp_path_factory.mktemp("credentials")) as world:
        yield world


@pytest.mark.parametrize(
    "test", list(go_tests(SOURCES / "logins_test.go")), ids=lambda test: test.name
)
def test_login_in_go(logins: LoginWorld, test: GoTest) -> None:
    surroundings = {
        "SERVICE_URL": logins.broker.service_url_tls,
        "ADMIN_URL": logins.broker.admin_url,
        "ADMIN_TOKEN": token("boss"),
        "CREDENTIALS": str(logins.directory),
        "PASSWORD": PASSWORD,
        "SECRET": base64.b64encode(SECRET).decode(),
        "NAMESPACE": logins.namespace().namespace,
    }
    run_go_test(test.name, surroundings)
