"""Where to divide a bundle."""

from collections.abc import Iterable

from pybroker.broker.brokers.ownership import Bundle


def middle(bundle: Bundle) -> int:
    return (bundle.low + bundle.high) // 2


def place_to_split(bundle: Bundle, hashes: Iterable[int]) -> int:
    """The hash that has about half of these topics on each side; the middle of the range if there
    is none because all have one hash.
    """
    found = sorted(hashes)
    half = len(found) // 2
    between = [n for n in range(1, len(found)) if found[n - 1] < found[n]]
    if not between:
        return middle(bundle)
    return found[min(between, key=lambda n: abs(n - half))]
