"""The stored form of an entry on a bookie: ids, the last confirmed entry, a checksum, the payload.

Ledger, entry, last confirmed entry and length, 8 bytes each; CRC32C over these and the payload; the
payload. The length is that of all payloads up to and including this one.

Source: org.apache.bookkeeper.proto.checksum.DigestManager.
"""

import hashlib
from struct import Struct
from typing import Final, NamedTuple

from managed_ledger.checksum import crc32c

_HEAD: Final = Struct(">qqqq")
_CHECKSUM: Final = Struct(">I")
HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size
NO_ENTRY: Final = -1


class DamagedBody(Exception):
    """A bookie's answer is not the requested entry."""


class EntryBody(NamedTuple):
    entry_id: int
    last_confirmed: int  # at the time of the write; -1: none
    length: int  # of all payloads up to this one, in bytes
    payload: bytes


def master_key(password: bytes) -> bytes:
    return hashlib.sha1(b"ledger" + password).digest()


def pack(
    ledger_id: int,
    entry_id: int,
    last_confirmed: int,
    length: int,
    payload: bytes,
    header: bytes = b"",
    before: bytes = b"",
) -> bytes:
    """The body, after `before`; `header` is the first part of the payload."""
    head = _HEAD.pack(ledger_id, entry_id, last_confirmed, length)
    checksum = crc32c(payload, crc32c(header, crc32c(head)))
    return b"".join((before, head, _CHECKSUM.pack(checksum), header, payload))


def unpack(body: bytes, ledger_id: int, entry_id: int | None) -> EntryBody:
    """Raises DamagedBody; `entry_id` None accepts any entry of the ledger."""
    if len(body) < HEAD_BYTES:
        raise DamagedBody(f"{len(body)} bytes are too few for an entry")
    of_ledger, of_entry, last_confirmed, length = _HEAD.unpack_from(body)
    payload = body[HEAD_BYTES:]
    (checksum,) = _CHECKSUM.unpack_from(body, _HEAD.size)
    if checksum != crc32c(payload, crc32c(body[: _HEAD.size])):
        raise DamagedBody("its checksum does not match")
    if of_ledger != ledger_id or (entry_id is not None and of_entry != entry_id):
        raise DamagedBody(f"it is entry {of_entry} of ledger {of_ledger}")
    return EntryBody(of_entry, last_confirmed, length, payload)
