"""Checks what Kafka's clients saw of a partition against its log, as both protocols show it.

An offset names a message for ever. A reader gets the log from its start, without gap, repetition
or swap, and of a transaction nothing before its commit was asked for.
"""

from collections.abc import Iterable, Iterator

from clients.kafka_producing import Batch
from clients.kafka_reading import Reading
from clients.kafka_words import Place, Shown

from checks.history import History, Read


def not_one_log(place: Place, log: list[Shown], reads: list[Read]) -> Iterator[str]:
    """Both protocols show the same messages in the same order."""
    here, there = [each.value for each in log], [each.value for each in reads]
    if here != there:
        at = next(
            (i for i, pair in enumerate(zip(here, there, strict=False)) if len({*pair}) > 1), -1
        )
        at = min(len(here), len(there)) if at < 0 else at
        yield (
            f"NOT ONE LOG: {place} is {here[at : at + 2]} for Kafka's clients from number {at} on, "
            f"and {there[at : at + 2]} for Pulsar's ({len(here)} and {len(there)} in all)"
        )


def wrong_offsets(place: Place, log: list[Shown], stored: Iterable[Batch]) -> Iterator[str]:
    """A batch is where its answer said."""
    values = dict(log)
    for batch in stored:
        assert batch.offset is not None
        for at, sent in enumerate(batch.sent, batch.offset):
            if sent.txn is not None and not sent.txn.committed:
                continue
            if values.get(at) != sent.value:
                yield (
                    f"WRONG OFFSET: {sent.value} was answered with {at} of {place}, where the log "
                    f"has {values.get(at)}"
                )


def reading_violations(history: History, log: list[Shown], reading: Reading) -> Iterator[str]:
    values = dict(log)
    confirmed = [each for each in reading.shown if values.get(each.offset) == each.value]
    if reading.committed:
        for each in reading.shown:
            if values.get(each.offset) != each.value:
                yield (
                    f"UNCONFIRMED READ: {reading.name} was handed {each.value} at {each.offset} of "
                    f"{reading.place}, where the log has {values.get(each.offset)}"
                )
        yield from _uncommitted(history, reading)
    if confirmed != log[: len(confirmed)]:
        at = next(i for i, pair in enumerate(zip(confirmed, log, strict=False)) if len({*pair}) > 1)
        yield (
            f"SKIPPED: {reading.name} was handed {confirmed[at]} as number {at}, where the log of "
            f"{reading.place} has {log[at]}"
        )


def _uncommitted(history: History, reading: Reading) -> Iterator[str]:
    for shown, turn in zip(reading.shown, reading.turns, strict=True):
        sent = history.sent.get(shown.value)
        asked = None if sent is None or sent.txn is None else sent.txn.commit_asked
        if asked is not None and turn < asked:
            yield (
                f"UNCOMMITTED READ: {reading.name} was handed {shown.value} at turn {turn}; its "
                f"commit was asked for at {asked}"
            )
