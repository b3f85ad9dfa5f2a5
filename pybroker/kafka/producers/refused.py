"""Batches that a connection's producers have to send again, before anything is known of them.

A producer of which nothing is known may begin at any sequence: its state has expired. Of several
batches on their way, the first may be refused (the topic is being created, say) and the second be
in time. If that one were taken for a beginning, the first could never follow it. So it is refused,
too: its client sends both again, in order.
"""

from collections import OrderedDict
from typing import Final

from pybroker.kafka.producers.errors import OutOfOrderSequence
from pybroker.kafka.records.batch import HEADER_BYTES, BatchHeader, header_of

_MOST: Final = 1000  # producers of a connection, on partitions
Place = tuple[str, int]  # topic and partition


class RefusedBatches:
    def __init__(self) -> None:
        self._first: OrderedDict[tuple[Place, int, int], int] = OrderedDict()

    def add(self, place: Place, batch: bytes) -> None:
        """The batch was not stored."""
        if len(batch) < HEADER_BYTES:
            return
        header = header_of(batch)
        if header.producer_id < 0:
            return
        self._first.setdefault(_key(place, header), header.base_sequence)
        if len(self._first) > _MOST:
            self._first.popitem(last=False)

    def check_beginning(self, place: Place, header: BatchHeader) -> None:
        """Before the first batch of a producer. Raises OutOfOrderSequence."""
        first = self._first.get(_key(place, header))
        if first is not None and first != header.base_sequence:
            raise OutOfOrderSequence(
                f"Producer {header.producer_id} sent sequence {header.base_sequence}, but "
                f"{first} was refused before it"
            )

    def stored(self, place: Place, header: BatchHeader) -> None:
        self._first.pop(_key(place, header), None)


def _key(place: Place, header: BatchHeader) -> tuple[Place, int, int]:
    return place, header.producer_id, header.producer_epoch
