"""A run's timeline: the commands between pipeline and broker, in order.

A short run is shown completely. For a long run the timeline shows the faults, starts and ends of
processes, commands about wrong messages, and commands next to a fault; gaps tell the number of
omitted rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pybroker.eos_check.connection_trace import Event, Position
from pybroker.eos_check.judgement import Breach, Content, id_of, shown
from pybroker.eos_check.run_result import RunResult
from pybroker.eos_check.words import printable

_ALL_UP_TO: Final = 100  # rows
_ROWS_AT_MOST: Final = 200
_BESIDE_A_FAULT: Final = 5
_NAMES_AT_MOST: Final = 4
_LIVES: Final = ("FAULT", "PIPELINE UP", "PIPELINE ENDED", "BROKER UP", "INPUT", "TIMEOUT")


class Arrow(Enum):
    """The direction of a row between the pipeline and the broker."""

    TO_BROKER = "──▶"
    TO_PIPELINE = "◀──"
    FAULT = "✗✗✗"
    NOTE = "   "


@dataclass(frozen=True, slots=True)
class Row:
    at_s: float
    arrow: Arrow
    text: str
    concerned: bool = False  # the row is about a wrong message


def rows(result: RunResult, breaches: Sequence[Breach]) -> list[Row]:
    """The rows; at most some 200."""
    names = _Names(result)
    wrong = {number for breach in breaches for number in breach.ids}
    told = [_row(event, names, wrong) for event in result.events]
    if len(told) <= _ALL_UP_TO:
        return told
    faults = [at for at, row in enumerate(told) if row.arrow is Arrow.FAULT]
    kept = [
        at
        for at, row in enumerate(told)
        if row.concerned
        or result.events[at].what in _LIVES
        or any(abs(at - fault) <= _BESIDE_A_FAULT for fault in faults)
    ]
    if len(kept) > _ROWS_AT_MOST:
        half = _ROWS_AT_MOST // 2
        kept = kept[:half] + kept[-half:]
    return _with_gaps(told, kept)


def _with_gaps(told: Sequence[Row], kept: Sequence[int]) -> list[Row]:
    shown_rows: list[Row] = []
    last = -1
    for at in [*kept, len(told)]:
        if at - last > 1:
            text = f"… {at - last - 1} more"
            shown_rows.append(Row(told[last + 1].at_s, Arrow.NOTE, text))
        if at < len(told):
            shown_rows.append(told[at])
        last = at
    return shown_rows


class _Names:
    """Describes messages by their positions."""

    def __init__(self, result: RunResult) -> None:
        self._inputs: Mapping[Position, str] = {at: each.id for each, at in result.inputs}
        self._outputs: dict[tuple[str, Position], Content] = {
            (each.topic, each.position): (each.topic, each.key, each.value)
            for each in result.outputs
        }

    def of(self, event: Event) -> tuple[str, set[str]]:
        """A description of the event's messages, and the ids of the inputs that they are or come
        from.
        """
        words, ids = [], set()
        for at in event.positions:
            if event.what == "SEND":
                content = self._outputs.get((event.topic, at))
                if content is not None:
                    words.append(shown(content).rpartition(" on ")[0])
                    ids.add(id_of(content))
                else:
                    words.append(f"{at[0]}:{at[1]}, which no reader sees")
            else:
                words.append(self._inputs.get(at) or f"{at[0]}:{at[1]}")
                ids.add(self._inputs.get(at, ""))
        more = len(words) - _NAMES_AT_MOST
        if more > 0:
            words[_NAMES_AT_MOST:] = [f"and {more} more"]
        return ", ".join(words), ids


def _row(event: Event, names: _Names, wrong: set[str]) -> Row:
    if event.what == "FAULT":
        return Row(event.at_s, Arrow.FAULT, event.note, True)
    if event.what in _LIVES:
        return Row(event.at_s, Arrow.NOTE, f"{event.what}: {event.note}")
    about, ids = names.of(event)
    words = [event.what.replace("_", " "), event.topic]
    if event.answer:
        words[0] = "RECEIPT" if event.what == "SEND" else f"{words[0]} done"
    if event.error:
        words[0] = f"{event.what} refused: {event.error}"
    if event.what == "SEND" and not event.answer and event.count > 1:
        words.append(f"({event.count} messages)")
    words += [about, event.note]
    if event.txn is not None:
        words.append(f"in transaction {event.txn[0]}:{event.txn[1]}")
    to_pipeline = event.answer or event.what == "MESSAGE"
    arrow = Arrow.TO_PIPELINE if to_pipeline else Arrow.TO_BROKER
    return Row(event.at_s, arrow, " ".join(filter(None, words)), bool(ids & wrong))


def as_text(told: Sequence[Row]) -> str:
    """One line per row: seconds, direction, text; `*` marks rows about a wrong message."""
    return "\n".join(
        f"{row.at_s:7.3f} s {'*' if row.concerned else ' '} {row.arrow.value} {printable(row.text)}"
        for row in told
    )
