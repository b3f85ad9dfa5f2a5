"""Escapes text from other people before a terminal shows it.

Otherwise the publisher of a message could clear the terminal's screen, rename its window, or enter
input. Files and pipes get the text unchanged.
"""

import os
import re
import sys
from typing import Final, TextIO

# Control characters except tab and newline, in both halves of Latin-1; characters that change the
# writing direction.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def for_reader(stream: TextIO, text: str) -> str:
    """`text` in a form that is safe to write to `stream`."""
    return _COMMANDS.sub(_escaped, text) if stream.isatty() else text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


READER_LEFT: Final = 141  # the exit code after SIGPIPE


def reader_left() -> int:
    """Handles the exit of the reader of the output, such as `head`, which is not an error. Returns
    the exit code.

    Otherwise the interpreter would try to write again when it exits.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT
