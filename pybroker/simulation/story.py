"""The events of one seed, in order: for the timeline, and for the hash that identifies a run."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

LINES: Final = 60  # of a timeline


@dataclass(frozen=True, slots=True)
class Event:
    """`about` are the messages and transactions of the event, by the names that violations use.
    `always`: every timeline contains the event, such as a crash.
    """

    at_s: float
    who: str
    text: str
    about: tuple[str, ...] = ()
    always: bool = False

    def __str__(self) -> str:
        return f"{self.at_s:10.4f}  {self.who:<14}  {self.text}"


def hash_of(events: Iterable[Event], *more: object) -> str:
    """A hash that is equal for two runs of one seed with the same code."""
    digest = hashlib.sha256()
    for thing in (*events, *more):
        digest.update(f"{thing!s}\n".encode())
    return digest.hexdigest()[:16]


def timeline(events: Sequence[Event], about: Iterable[str], limit: int = LINES) -> list[str]:
    """The lines related to `about`; gaps tell the number of omitted lines."""
    chosen = _chosen(events, set(about))
    if len(chosen) > limit:  # the beginning and the end are most informative
        chosen = [*chosen[: limit // 2], *chosen[-(limit - limit // 2) :]]
    lines: list[str] = []
    expected = 0
    for index in chosen:
        if index > expected:
            lines.append(_gap(index - expected))
        lines.append(str(events[index]))
        expected = index + 1
    if expected < len(events):
        lines.append(_gap(len(events) - expected))
    return lines


def _gap(count: int) -> str:
    return f"{'':10}  {'…':<14}  {count} other line{'s' * (count != 1)}"


def _chosen(events: Sequence[Event], names: set[str]) -> list[int]:
    """Indexes of events about these names, or about transactions of the events with these names."""
    with_txns = set(names)
    for event in events:
        if names.intersection(event.about):
            with_txns.update(name for name in event.about if name.startswith("("))
    return [
        index
        for index, event in enumerate(events)
        if event.always or with_txns.intersection(event.about)
    ]
