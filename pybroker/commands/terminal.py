"""Escapes text from other people before a terminal shows it.

Otherwise the publisher of a message could clear the terminal's screen, rename its window, or enter
input. Files and pipes get the text unchanged.

An output whose encoding lacks pybroker's own signs, such as Latin-1, gets similar ones.
"""

import codecs
import os
import re
import sys
from io import TextIOWrapper
from typing import Final, TextIO

# Control characters except tab and newline, in both halves of Latin-1; characters that change the
# writing direction.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def for_reader(stream: TextIO, text: str) -> str:
    """`text` in a form that is safe to write to `stream`."""
    return _COMMANDS.sub(_escaped, text) if stream.isatty() else text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


_SIMILAR: Final = {
    "…": "...", "→": "->", "–": "-", "─": "-", "│": "|", "▶": ">", "◀": "<", "▼": "v", "✗": "x",
    "█": "#",
}  # fmt: skip
_WITH_SIMILAR: Final = "pybroker.similar"


def write_similar_signs(*streams: TextIO) -> None:
    """Replaces what a stream cannot encode, instead of ending the command with an error."""
    codecs.register_error(_WITH_SIMILAR, _similar)
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_WITH_SIMILAR)


def _similar(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    known = "".join(_SIMILAR.get(sign, _escape(sign)) for sign in found)
    return known, error.end


def _escape(sign: str) -> str:
    return sign.encode("ascii", "backslashreplace").decode()


READER_LEFT: Final = 141  # the exit code after SIGPIPE


def reader_left() -> int:
    """Handles the exit of the reader of the output, such as `head`, which is not an error. Returns
    the exit code.

    Otherwise the interpreter would try to write again when it exits.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT
