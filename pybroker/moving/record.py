"""The records that a move keeps in its target, to continue after a crash.

`move/state` names the source; it is written first and deleted last, and no broker starts while it
exists. `move/ledgers/<number>` is created with the ledger, empty, and receives the ledger's
checksum once the copy has been read back.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.importing import MOVE_PREFIX

LEDGERS_PREFIX: Final = f"{MOVE_PREFIX}ledgers/"
_FORMAT: Final = 1
COPYING: Final = "copying"
COPIED: Final = "copied"  # only the records must still be deleted
DISCARDING: Final = "discarding"  # the copy is being deleted: the records are no longer valid


class MoveFailed(ManagedLedgerError):
    """The move cannot continue; the message says what to do."""


@dataclass(frozen=True, slots=True)
class State:
    source: str
    phase: str = COPYING

    def encode(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> "State":
        """Raises MoveFailed if a later version began the move."""
        found = json.loads(value)
        if found.pop("format") != _FORMAT:
            raise MoveFailed("a later version of pybroker began this move: finish it with that one")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Sum:
    """The totals of a ledger, and a checksum over its entries, message counts and tags."""

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
