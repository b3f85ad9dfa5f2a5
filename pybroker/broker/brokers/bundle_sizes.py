"""Where to divide a bundle."""

from collections.abc import Iterable

from pybroker.broker.brokers.ownership import Bundle


def middle(bundle: Bundle) -> int:
    return (bundle.low + bundle.high) // 2


def place_to_split(bundle: Bundle, hashes: Iterable[int]) -> int:
    """The hash that has half of these topics on each side; the middle of the range if there is
    none.
    """
    found = sorted(hashes)
    half = len(found) // 2
    if half and found[half - 1] < found[half]:
        at = found[half]
        if bundle.low < at < bundle.high:
            return at
    return middle(bundle)
