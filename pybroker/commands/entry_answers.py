"""The messages in an answer of the admin REST API that holds a stored entry: the entry's metadata
in headers, and its content, decompressed.
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.wire.message_metadata import BadEntry
from pybroker.wire.single_messages import split_batch

HEADER: Final = "X-Pulsar-"
_NOT_FOUND: Final = "HTTP 404: Message not found"


def is_end_of_backlog(error: Exception) -> bool:
    return str(error).startswith(_NOT_FOUND)


def singles(said: Mapping[str, str], data: bytes) -> list[tuple[Any, bytes]] | None:
    """The messages of a batch, whose headers without the prefix are `said`, in lower case. None if
    the entry is not a batch, or if the batch cannot be split because it is encrypted or
    inconsistent.
    """
    batch_size = int(said.get("num-batch-message", 0))
    if not batch_size or said.get("is-encrypted") == "true":
        return None
    try:
        return list(split_batch(data, batch_size))
    except BadEntry:
        return None


def id_in_batch(entry_id: str, index: int) -> str:
    return f"{entry_id}:-1:{index}"
