"""Event times from columns without a time zone: in the session's time zone, as Spark casts them.

A local time that a clock passes twice means the first of both; one that it skips is counted from
the last time before it, so that 02:30 becomes 03:30.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from pybroker.base.errors import NotAllowed

# A task knows this property if it is set in the session, which `register` sees to.
SESSION_TIME_ZONE: Final = "spark.sql.session.timeZone"

_SECOND_US: Final = 1_000_000
# Offsets are looked up for a quarter of an hour at once: clocks are rarely changed within one.
_QUARTER_S: Final = 900
_FIXED: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?")
_UTC: Final = ("Z", "UTC", "GMT", "UT")

Microseconds = npt.NDArray[np.int64]
# From a local time, in seconds since 1970, to what its clock is ahead of UTC, in seconds.
Offset = Callable[[int], int]


def utc_us(local_us: Microseconds, time_zone: str | None) -> Microseconds:
    """Microseconds since 1970 in UTC. Raises NotAllowed if the session's time zone is unknown."""
    offset = _offset(time_zone)
    quarters, of_row = np.unique(local_us // _SECOND_US // _QUARTER_S, return_inverse=True)
    first = [offset(int(quarter) * _QUARTER_S) for quarter in quarters]
    last = [offset((int(quarter) + 1) * _QUARTER_S - 1) for quarter in quarters]
    offsets = np.array(first, np.int64)[of_row]
    for row in np.flatnonzero(np.not_equal(first, last)[of_row]):
        offsets[row] = offset(int(local_us[row] // _SECOND_US))
    return local_us - offsets * _SECOND_US


@lru_cache(maxsize=4)
def _offset(time_zone: str | None) -> Offset:
    """Raises NotAllowed if the time zone is not known on this machine."""
    if time_zone in _UTC:
        return lambda local_s: 0
    if time_zone is not None and (fixed := _FIXED.fullmatch(time_zone)):
        sign, *parts = fixed.groups(default="0")
        hours, minutes, seconds = map(int, parts)
        ahead_s = (hours * 60 + minutes) * 60 + seconds
        return lambda local_s: -ahead_s if sign == "-" else ahead_s
    try:
        zone = ZoneInfo(time_zone or "")
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise NotAllowed(
            f"An event time without a time zone is in the session's, {SESSION_TIME_ZONE}, but "
            f"{time_zone or 'it'} is not known here: cast the column to timestamp"
        ) from error

    def offset(local_s: int) -> int:
        ahead: Any = _local_time(local_s).replace(tzinfo=zone).utcoffset()
        return int(ahead.total_seconds())

    return offset


def _local_time(local_s: int) -> datetime:
    """The nearest one within the years that Python knows."""
    try:
        return datetime(1970, 1, 1) + timedelta(seconds=local_s)
    except OverflowError:
        return datetime.max if local_s > 0 else datetime.min
