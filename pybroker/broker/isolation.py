"""What a subscription reads of transactions that are open: nothing, or what they have written.

It is chosen when the subscription is made, by a property that any official client can send: of the
subscription, or of the consumer that makes it. From then on it is the subscription's. So nobody
can turn what others read by joining them, or by changing properties.
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
    """What they say, of a subscription or of a consumer; None if nothing. Raises NotAllowed."""
    levels = {_parsed(each[PROPERTY]) for each in properties if PROPERTY in each}
    if len(levels) > 1:
        raise NotAllowed(
            f"The subscription's properties and the consumer's name another {PROPERTY} each: say "
            "it once, or the same"
        )
    return next(iter(levels), None)


def _parsed(text: str) -> Isolation:
    try:
        return Isolation(text)
    except ValueError:
        raise NotAllowed(
            f"{PROPERTY} is {text[:80]!r}: it is read_committed (the default) or read_uncommitted"
        ) from None


def kept_in(properties: Mapping[str, str]) -> Isolation:
    """Of a subscription that there is. What cannot be one was set by a version that had none."""
    reads_all = properties.get(PROPERTY) == Isolation.READ_UNCOMMITTED.value
    return Isolation.READ_UNCOMMITTED if reads_all else Isolation.READ_COMMITTED


def check_stays(kept: Isolation, asked: Isolation | None, subscription: object) -> None:
    """Raises NotAllowed."""
    if asked not in (None, kept):
        raise NotAllowed(
            f"{subscription} is {kept.value}, which was fixed when it was made: use it without "
            f"{PROPERTY}, or make another subscription"
        )
