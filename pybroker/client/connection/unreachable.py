"""Logs which addresses cannot be reached, once until they can be.

An operation goes on trying for its timeout, so without these lines an application whose broker is
not running would be silent for half a minute.
"""

import asyncio
import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLOW_S: Final = 2.0

log = logging.getLogger("pybroker.client")


class Unreachable:
    def __init__(self) -> None:
        self._named: set[str] = set()

    @contextmanager
    def watched(self, address: str) -> Iterator[None]:
        """Around one attempt to connect: names `address` if it fails with an OSError, or after
        `SLOW_S` without an answer.
        """
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_S, self._name, address, f"no answer within {SLOW_S:g} s")
        try:
            yield
        except OSError as error:
            self._name(address, reason(error))
            raise
        else:
            self._named.discard(address)
        finally:
            slow.cancel()

    def _name(self, address: str, why: str) -> None:
        if address not in self._named:
            self._named.add(address)
            log.warning("cannot connect to %s: %s; still trying", address, why)


def reason(error: OSError) -> str:
    """What went wrong, in words. An attempt on several addresses of a name has no errno, only a
    text with the errors of all.
    """
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "nothing listens there (connection refused)"
    return str(error) or "timed out"
