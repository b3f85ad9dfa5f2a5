"""Chooses a broker for a bundle that has no owner: rendezvous hashing with a bound on load.

Every broker ranks the live brokers for a bundle by a hash of both; the first broker that has less
than its share takes the bundle. So all brokers usually choose the same one. Their counts may differ
briefly; then the broker that is first to create the bundle's node owns it. When a broker leaves,
only its own bundles move. Source: Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded
Loads.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

_SLACK: Final = 1.25  # the bound on a broker's bundles, relative to the average


def chosen(bundle: str, loads: Mapping[str, int]) -> str | None:
    """The broker that should take the bundle; None if there is none. `loads`: the number of bundles
    of each live broker, by broker id.
    """
    if not loads:
        return None
    bound = most(loads)
    ranked = sorted(loads, key=lambda broker: _weight(bundle, broker), reverse=True)
    return next(broker for broker in ranked if loads[broker] < bound)


def most(loads: Mapping[str, int]) -> int:
    """The number of bundles that a broker may own once one more is owned. At least one broker owns
    fewer.
    """
    return int(_SLACK * (sum(loads.values()) + 1) / len(loads)) + 1


def should_move(bundle: str, broker: str, loads: Mapping[str, int]) -> bool:
    """Whether another broker would take the bundle if `broker` gave it back, and the move would
    make their loads more equal.
    """
    own = loads.get(broker, 0)
    found = chosen(bundle, {**loads, broker: own - 1})
    return found is not None and found != broker and loads[found] + 1 < own


def _weight(bundle: str, broker: str) -> bytes:
    return blake2b(f"{bundle} {broker}".encode(), digest_size=8).digest()
