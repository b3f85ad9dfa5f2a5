"""Common fixtures for the tests of several clients."""

from collections.abc import Iterator

import pytest
from login_world import LoginWorld, login_world
from permission_world import World


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginWorld]:
    with login_world(tmp_path_factory.mktemp("credentials")) as world:
        yield world


@pytest.fixture
def world(logins: LoginWorld) -> World:
    return logins.namespace()
