"""Deduplication: which messages of a producer name were here before, and what aborts gave back.

on_produce   asks for the pieces of a run: new, duplicates, copies of what is not decided yet
topic        publishes what is new, and says whether it was stored
recovery     a snapshot in the metadata store, and a scan of the entries behind it
"""

from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.deduplication.pieces import Copy, Duplicate, New, Piece, Refused, Taken

__all__ = ["Copy", "Deduplication", "Duplicate", "New", "Piece", "Refused", "Taken"]
