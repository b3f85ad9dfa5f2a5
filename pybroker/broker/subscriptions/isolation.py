"""What a subscription reads of open transactions: nothing, or their messages.

A property that any official client can send chooses this when the subscription is created: a
property of the subscription, or of the consumer that creates it. From then on the level is fixed.
So no client can change what others read by joining them, or by changing properties.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from pybroker.base.errors import NotAllowed

PROPERTY: Final = "isolation.level"


class Isolation(Enum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def asked_for(*properties: Mapping[str, str]) -> Isolation | None:
    """The level in the properties of a subscription or consumer; None if unset. Raises
    NotAllowed.
    """
    levels = {_parsed(each[PROPERTY]) for each in properties if PROPERTY in each}
    if len(levels) > 1:
        raise NotAllowed(
            f"The subscription's and the consumer's properties disagree on {PROPERTY}: "
            "set it once, or to the same value"
        )
    return next(iter(levels), None)


def _parsed(text: str) -> Isolation:
    try:
        return Isolation(text)
    except ValueError:
        raise NotAllowed(
            f"{PROPERTY} is {text[:80]!r}: must be read_committed (the default) or read_uncommitted"
        ) from None


def kept_in(properties: Mapping[str, str]) -> Isolation:
    """The level of an existing subscription. Invalid values come from versions without levels."""
    reads_all = properties.get(PROPERTY) == Isolation.READ_UNCOMMITTED.value
    return Isolation.READ_UNCOMMITTED if reads_all else Isolation.READ_COMMITTED


def check_stays(kept: Isolation, asked: Isolation | None, subscription: object) -> None:
    """Raises NotAllowed if another isolation is asked for than the subscription has."""
    if asked not in (None, kept):
        raise NotAllowed(
            f"{subscription} is {kept.value}, which was fixed when it was created: use it without "
            f"{PROPERTY}, or create another subscription"
        )
