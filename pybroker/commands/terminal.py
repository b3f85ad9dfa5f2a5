"""Escapes foreign text on a terminal.

Otherwise a message's publisher could clear the reader's screen, rename its window, or type for it.
A file or a pipe gets the text unchanged.
"""

import os
import re
import sys
from typing import Final, TextIO

# Control characters except tab and newline, in both halves of Latin-1; changes of the writing
# direction.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def for_reader(stream: TextIO, text: str) -> str:
    """`text` in a form that is safe to write to `stream`."""
    return _COMMANDS.sub(_escaped, text) if stream.isatty() else text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


READER_LEFT: Final = 141  # as after SIGPIPE


def reader_left() -> int:
    """The reader of the output has exited, like `head`: not an error. Returns the exit code.

    The interpreter would otherwise try to write again at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT
