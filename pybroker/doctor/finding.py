"""The result of one check."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    OK = "ok"
    ABSENT = "absent"  # an optional part is not installed, and nothing that is configured needs it
    WARNING = "warning"  # the broker starts, but something should be better
    ERROR = "error"  # the broker does not start, or loses its promises


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    found: str
    advice: str = ""  # what to do about it; empty if nothing is to be done
