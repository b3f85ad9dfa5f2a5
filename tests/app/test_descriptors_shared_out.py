"""The number of connections is limited by the number of descriptors."""

import resource

from pybroker.process.descriptors import connections, raise_limit
from pybroker.security.tls_connection import most_handshakes


def test_few_descriptors_mean_few_connections() -> None:
    assert 1 < connections(1000, limit=200) < 100


def test_with_enough_descriptors_the_configuration_holds() -> None:
    assert connections(1000, limit=100_000) == 1000


def test_tls_handshakes_leave_descriptors_to_connections() -> None:
    plain, with_tls = (connections(1000, 1024, tls_ports=ports) for ports in (0, 2))
    assert 300 < with_tls < plain
    assert with_tls + 2 * sum(most_handshakes(1024)) < 1024


def test_there_is_always_room_for_one_connection() -> None:
    assert connections(1000, limit=10) == 1


def test_the_limit_is_raised_as_far_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(128, before[0] // 2), before[1]))
        assert raise_limit() >= before[0]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
