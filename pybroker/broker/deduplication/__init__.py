"""Deduplication: which of a producer's messages are duplicates, and which may be sent again.

sends        asks for the pieces of a run: new ones, duplicates, copies of undecided ones, and the
             rest if batches take long to examine
topic        publishes the new pieces, and reports whether they were stored
recovery     a snapshot in the metadata store, and a scan of the entries after it
"""

from pybroker.broker.deduplication.batch_ids import Examinations
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.deduplication.pieces import (
    Copy,
    Duplicate,
    Later,
    New,
    Piece,
    Refused,
    Rest,
    Taken,
)

__all__ = [
    "Copy",
    "Deduplication",
    "Duplicate",
    "Examinations",
    "Later",
    "New",
    "Piece",
    "Refused",
    "Rest",
    "Taken",
]
