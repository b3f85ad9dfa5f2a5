"""How many failures are remembered, for which addresses, and for how long."""

import pytest

from pybroker.base.errors import AuthenticationError
from pybroker.security import refused_logins
from pybroker.security.refused_logins import FAILURES_AT_ONCE, FAILURES_PER_SECOND, RefusedLogins

USER = "anna"


class Clock:
    now_s = 100.0

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refused(clock: Clock) -> RefusedLogins:
    return RefusedLogins(clock)


def fail(refused: RefusedLogins, address: str, times: int = FAILURES_AT_ONCE) -> None:
    for _ in range(times):
        refused.check(address, USER)
        refused.failed(address, USER)


def test_who_failed_too_often_waits(refused: RefusedLogins, clock: Clock) -> None:
    fail(refused, "1.2.3.4")
    with pytest.raises(AuthenticationError):
        refused.check("1.2.3.4", USER)
    clock.now_s += 1 / FAILURES_PER_SECOND
    fail(refused, "1.2.3.4", 1)
    with pytest.raises(AuthenticationError):
        refused.check("1.2.3.4", USER)


def test_everything_is_forgiven_in_time(refused: RefusedLogins, clock: Clock) -> None:
    fail(refused, "1.2.3.4")
    clock.now_s += FAILURES_AT_ONCE / FAILURES_PER_SECOND
    fail(refused, "1.2.3.4")


def test_other_addresses_do_not_pay(refused: RefusedLogins) -> None:
    fail(refused, "1.2.3.4")
    refused.check("1.2.3.5", USER)


def test_other_users_at_the_same_address_do_not_pay(refused: RefusedLogins) -> None:
    fail(refused, "1.2.3.4")
    refused.check("1.2.3.4", "berta")


def test_a_machine_has_one_bucket_for_all_its_ipv6_addresses(refused: RefusedLogins) -> None:
    for number in range(FAILURES_AT_ONCE):
        refused.failed(f"2001:db8::{number:x}", USER)
    with pytest.raises(AuthenticationError):
        refused.check("2001:db8::ffff%eth0", USER)
    refused.check("2001:db8:0:1::1", USER)


def test_ipv4_peers_of_a_socket_for_both_versions_do_not_pay_for_each_other(
    refused: RefusedLogins,
) -> None:
    for _ in range(FAILURES_AT_ONCE):
        refused.failed("::ffff:10.0.0.1", USER)
    refused.check("::ffff:10.0.0.2", USER)
    with pytest.raises(AuthenticationError):
        refused.check("10.0.0.1", USER)


def test_a_million_refusals_take_the_memory_of_some(
    refused: RefusedLogins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_logins, "_PAIRS", 100)
    for number in range(1000):
        refused.failed(f"10.0.{number >> 8}.{number & 255}", USER)
    assert len(refused) == 100
