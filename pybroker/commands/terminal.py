"""Texts of others on a terminal: what would command it is shown escaped.

Whoever publishes a message would else clear the screen of who looks at it, rename its window, or
type for it. A file or a pipe gets what was sent, as it is.
"""

import os
import re
import sys
from typing import Final, TextIO

# Controls but for tab and newline, of both halves of Latin-1; what turns the direction of writing.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def for_reader(stream: TextIO, text: str) -> str:
    """`text` as it may be written to `stream`."""
    return _COMMANDS.sub(_escaped, text) if stream.isatty() else text


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


READER_LEFT: Final = 141  # as who dies of SIGPIPE


def reader_left() -> int:
    """Whoever read our output has gone, as `head` does: that is no error. The exit code.

    The interpreter would try once more to write it when it ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT
