"""Limits failed logins per user name and address: one bucket per pair, up to a maximum.

With an empty bucket, a login is refused without checking the password, which is expensive. So
guessing is limited to the rate at which the bucket fills, without affecting others at that address.
An IPv6 address counts with its /64, which one machine may own.
"""

from collections import OrderedDict
from typing import Final

from pybroker.base.errors import AuthenticationError
from pybroker.base.machines import machine_of
from pybroker.base.runtime import Clock

FAILURES_AT_ONCE: Final = 100
FAILURES_PER_SECOND: Final = 5.0
_PAIRS: Final = 10_000
_NAME_CHARS: Final = 64


class RefusedLogins:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By machine and user: unforgiven failures, and the time of the last one.
        self._failures: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def check(self, address: str, user: str) -> None:
        """Raises AuthenticationError after too many failures."""
        if self._unforgiven(_key(address, user)) > FAILURES_AT_ONCE - 1:
            raise AuthenticationError(
                "Too many failed logins of this user from this address; wait a few seconds and try "
                "again"
            )

    def failed(self, address: str, user: str) -> None:
        key = _key(address, user)
        self._failures[key] = self._unforgiven(key) + 1, self._clock.monotonic_s()
        self._failures.move_to_end(key)
        if len(self._failures) > _PAIRS:
            self._failures.popitem(last=False)

    def _unforgiven(self, key: tuple[str, str]) -> float:
        failures, since_s = self._failures.get(key, (0.0, 0.0))
        return max(0.0, failures - (self._clock.monotonic_s() - since_s) * FAILURES_PER_SECOND)


def _key(address: str, user: str) -> tuple[str, str]:
    return machine_of(address), user[:_NAME_CHARS]
