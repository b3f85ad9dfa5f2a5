"""The destination of lines, and how many of a kind are written."""

import io
import logging

from pybroker.logs.lines import TEXT
from pybroker.logs.output import EARLY_RECORDS, KINDS, USUAL, Bucket, LogOutput


class Written:
    """An output whose clock the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._stream = io.StringIO()
        self.output = LogOutput(self._stream, lambda: self.now_s)
        self.output.begin(TEXT)

    def say(self, message: str, name: str = "pybroker.server", level: int = logging.INFO) -> None:
        self.output.handle(logging.LogRecord(name, level, "", 1, message, (), None))

    def lines(self) -> list[str]:
        """The lines since the last call, without their prefixes."""
        said = [line.partition(": ")[2] for line in self._stream.getvalue().splitlines()]
        self._stream.seek(0)
        self._stream.truncate()
        return said


def test_what_is_repeated_without_end_is_counted_and_not_written() -> None:
    written = Written()
    for _ in range(1000):
        written.say("closing")
    assert written.lines() == ["closing"] * USUAL.at_once


def test_other_lines_go_on_meanwhile() -> None:
    written = Written()
    for _ in range(1000):
        written.say("closing")
    written.lines()
    written.say("the disk is nearly full")
    assert written.lines() == ["the disk is nearly full"]


def test_what_was_left_out_is_counted_in_the_next_line_of_any_kind() -> None:
    written = Written()
    for _ in range(USUAL.at_once + 7):
        written.say("closing")
    written.lines()
    written.now_s += 60
    written.say("anything")
    assert written.lines() == ["7 similar lines were suppressed: closing", "anything"]
    written.now_s += 60
    written.say("anything")
    assert written.lines() == ["anything"]


def test_what_was_left_out_is_said_with_an_example() -> None:
    written = Written()
    for number in range(USUAL.at_once + 3):
        name, arguments = "pybroker.server", (number,)
        record = logging.LogRecord(name, logging.INFO, "", 1, "closing %d", arguments, None)
        written.output.handle(record)
    written.lines()
    written.now_s += 60
    written.say("anything")
    assert written.lines()[0] == f"3 similar lines were suppressed: closing {USUAL.at_once}"


def test_what_was_left_out_is_said_at_the_end() -> None:
    written = Written()
    for _ in range(USUAL.at_once + 7):
        written.say("closing")
    written.lines()
    written.output.close()
    assert written.lines() == ["7 similar lines were suppressed: closing"]


def test_a_kind_has_its_lines_again_after_a_while() -> None:
    written = Written()
    for _ in range(100):
        written.say("closing")
    written.lines()
    written.now_s += 2 / USUAL.per_second
    for _ in range(100):
        written.say("closing")
    assert written.lines() == ["closing"] * 2


def test_who_asked_for_debug_or_accesses_gets_all_of_them() -> None:
    written = Written()
    for _ in range(500):
        written.say("seen", level=logging.DEBUG)
        written.say("GET", "pybroker.access")
    assert len(written.lines()) == 1000


def test_a_record_may_bring_its_own_limit_and_kind() -> None:
    written = Written()
    for number in range(10):
        record = logging.LogRecord("pybroker.audit", 30, "", 1, f"refused {number}", (), None)
        record.kind, record.bucket = "refusals from 10.0.0.1", Bucket(3, 1.0)
        written.output.handle(record)
    assert written.lines() == ["refused 0", "refused 1", "refused 2"]


def test_kinds_without_end_take_bounded_memory() -> None:
    written = Written()
    for number in range(3 * KINDS):
        written.say(f"closing {number}")
    assert len(written.output._kinds) == KINDS


def test_what_is_said_before_the_format_is_known_is_written_then() -> None:
    stream = io.StringIO()
    output = LogOutput(stream)
    for number in range(2 * EARLY_RECORDS):
        output.handle(logging.LogRecord("pybroker", 30, "", 1, f"early {number}", (), None))
    assert stream.getvalue() == ""
    output.begin(TEXT)
    assert "early 0\n" in stream.getvalue()
