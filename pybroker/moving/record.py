"""What a move notes in its target, so that it can go on after a crash.

`move/state` says from where it copies; it is written first and deleted last, and no broker starts
while it is there. `move/ledgers/<number>` comes with the ledger, empty, and gets the ledger's sum
once the copy has been read back.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.importing import MOVE_PREFIX

LEDGERS_PREFIX: Final = f"{MOVE_PREFIX}ledgers/"
_FORMAT: Final = 1
COPYING: Final = "copying"
COPIED: Final = "copied"  # only the notes are left to delete
DISCARDING: Final = "discarding"  # the notes do not hold any more


class MoveFailed(ManagedLedgerError):
    """The move cannot go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class State:
    source: str
    phase: str = COPYING

    def encode(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> "State":
        """Raises MoveFailed."""
        found = json.loads(value)
        if found.pop("format") != _FORMAT:
            raise MoveFailed("a later version of pybroker began this move: finish it with that one")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Sum:
    """Of all entries of a ledger, with message counts and tags."""

    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    crc32c: int = 0

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Sum":
        return cls(**json.loads(value))


def ledger_key(ledger_id: int) -> str:
    return f"{LEDGERS_PREFIX}{ledger_id}"
