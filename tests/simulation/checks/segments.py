"""What readers of a scalable topic must have read in the end, and in which order.

A value is `writer/incarnation/key/number`; numbers of a writer count up.
"""

from collections.abc import Collection, Iterable, Mapping

from checks.history import Outcome, Sent


def certain(sent: Mapping[str, Sent]) -> list[str]:
    """The values that are stored and visible, as their writers know."""
    return [
        value
        for value, each in sent.items()
        if each.outcome is Outcome.DONE and (each.txn is None or each.txn.committed)
    ]


def missed(sent: Mapping[str, Sent], read: Collection[str], who: str) -> list[str]:
    return [f"LOSS: {who} missed {value}" for value in certain(sent) if value not in read]


def doubled(
    sent: Mapping[str, Sent], read: Mapping[str, Collection[object]], who: str
) -> list[str]:
    """`read`: values, and the places where each is stored. With deduplication it is one."""
    return [
        f"DOUBLED: {who} got {value} {len(places)} times, with different ids"
        for value, places in read.items()
        if value in sent and len(places) > 1
    ]


def of_aborted(sent: Mapping[str, Sent], read: Iterable[str], who: str) -> list[str]:
    return [
        f"ABORTED READ: {who} got {value} of {txn.name}"
        for value in read
        if (txn := sent[value].txn) is not None and txn.surely_aborted
    ]


def out_of_order(sent: Mapping[str, Sent], read: Iterable[str], who: str) -> list[str]:
    """`read`: values in the order of their first receipt. By key and incarnation of a writer; what
    is in transactions comes when they end.
    """
    last: dict[str, tuple[int, str]] = {}
    found = []
    for value in read:
        if sent[value].txn is not None or sent[value].outcome is not Outcome.DONE:
            continue
        key, _, number = value.rpartition("/")
        before = last.setdefault(key, (0, ""))
        if int(number) < before[0]:
            found.append(f"KEY ORDER: {who} got {value} after {before[1]}")
        last[key] = max(before, (int(number), value))
    return found
