"""Checks what clients saw against what they were promised; each broken promise is a sentence.

Promises to transactions and producers are in checks/anomalies.py. This module checks for invented
messages, and what readers and consumers were handed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from checks.anomalies import anomalies
from checks.history import History, Logs, Outcome, Read


def violations(history: History, logs: Logs) -> list[str]:
    """All broken promises, the most telling first."""
    return [
        *history.failures,
        *anomalies(history, logs),
        *_unknown_values(history, logs),
        *_reads_that_no_log_confirms(history, logs),
        *_readers_that_skipped(history, logs),
    ]


def _unknown_values(history: History, logs: Logs) -> Iterator[str]:
    for read in _all(logs):
        sent = history.sent.get(read.value)
        if sent is None:
            yield f"INVENTED: {read.value!r} in {read.topic} was never sent"
        elif sent.outcome is Outcome.REFUSED:
            yield f"REFUSED BUT VISIBLE: {read.value} in {read.topic}"


def _reads_that_no_log_confirms(history: History, logs: Logs) -> Iterator[str]:
    """A message that a client was handed stays readable forever, at the same place. This does not
    hold for readers of uncommitted messages.
    """
    places = {(read.topic, read.message_id): read.value for read in _all(logs)}
    for receiver in history.receivers:
        for read in receiver.reads if receiver.committed_only else ():
            now = places.get((read.topic, read.message_id))
            if now != read.value:
                yield (
                    f"UNCONFIRMED READ: {receiver.name} was handed {read.value} at "
                    f"{read.topic} {read.message_id}, where the log has {now}"
                )


def _readers_that_skipped(history: History, logs: Logs) -> Iterator[str]:
    """A reader receives a topic's log from its start, without gap, repetition or swap."""
    for receiver in history.receivers:
        if receiver.subscription is not None or not receiver.committed_only:
            continue
        by_topic: dict[str, list[Read]] = defaultdict(list)
        for read in receiver.reads:
            by_topic[read.topic].append(read)
        for topic, reads in by_topic.items():
            expected = logs.get(topic, [])[: len(reads)]
            if reads != expected:
                index = next(i for i, read in enumerate(reads) if read != _at(expected, i))
                yield (
                    f"SKIPPED: reader {receiver.name} was handed {reads[index]} as number "
                    f"{index}, where the log has {_at(expected, index)}"
                )


def never_consumed(history: History, subscription: str, logs: Iterable[list[Read]]) -> list[str]:
    """Messages of the logs that no consumer of the subscription was ever handed."""
    handed = {
        read.value
        for receiver in history.receivers
        if receiver.subscription == subscription
        for read in receiver.reads
    }
    return [
        f"NEVER DELIVERED: {read.value} of {read.topic} to {subscription}"
        for log in logs
        for read in log
        if read.value not in handed
    ]


def _all(logs: Logs) -> Iterator[Read]:
    for log in logs.values():
        yield from log


def _at(log: list[Read], index: int) -> Read | None:
    return log[index] if index < len(log) else None
