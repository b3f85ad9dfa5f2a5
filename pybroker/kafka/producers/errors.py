"""Why a batch of an idempotent producer is not stored: one class per error code of Kafka."""

from typing import ClassVar


class ProducerRefused(Exception):
    """The message says what was expected. `code` is Kafka's error code."""

    code: ClassVar[int]


class OutOfOrderSequence(ProducerRefused):
    """A batch before this one is missing. The client bumps its epoch and sends again."""

    code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequence(ProducerRefused):
    """The batch is stored, but its offset is no longer known. The client counts it as sent."""

    code = 46  # DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpoch(ProducerRefused):
    """A newer instance of the producer has written here."""

    code = 47  # INVALID_PRODUCER_EPOCH
