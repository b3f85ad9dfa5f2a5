"""Colours, where a terminal shows them and NO_COLOR (https://no-color.org) is not set."""

import os
import sys
from collections.abc import Mapping
from typing import Final, TextIO

GREEN: Final = "32"
YELLOW: Final = "33"
RED: Final = "31"
BOLD: Final = "1"
PLAIN: Final = "0"


def shows_colours(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


def coloured(text: str, code: str, stream: TextIO | None = None) -> str:
    """`text` in the colour `code` if `stream`, by default stdout, shows colours."""
    if not shows_colours(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
