"""The exceptions that the client raises: those of the wire and those of the client itself.

A refusal by the broker arrives as a code and a text; `from_wire` turns it into the exception that
the broker raised (pybroker.base.errors, one class per code). All derive from PulsarException.
"""

from collections.abc import Sequence
from typing import Any, Final

from pybroker.base import errors
from pybroker.base.errors import InvalidTxnStatus, PulsarError
from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

PulsarException = PulsarError


class ProducerBlockedQuotaExceededError(PulsarError):
    code = 7


class ProducerBlockedQuotaExceededException(PulsarError):
    code = 8


class ClientError(PulsarError):
    """Raised by the client itself."""


class Timeout(ClientError, TimeoutError):
    """Nothing arrived in time. For a send, the message may or may not be stored."""


class ConnectError(ClientError, ConnectionError):
    """There is no connection, or it broke before the answer."""


class AlreadyClosed(ClientError):
    pass


class ProducerQueueIsFull(ClientError):
    pass


class MessageTooBig(ClientError):
    pass


class InvalidConfiguration(ClientError, ValueError):
    pass


class CryptoError(ClientError):
    """An encrypted entry cannot be decrypted, or a message cannot be encrypted."""


class UnsupportedCompression(ClientError):
    """The codec's library is not installed."""


class TransactionAborted(InvalidTxnStatus):
    """The transaction was aborted instead of committed because one of its operations failed.

    The failure is the `__cause__`. Nothing of the transaction becomes visible: run it again.
    """


class TransactionOutcomeUnknown(ClientError):
    """The broker did not confirm the end within the operation timeout; it may have happened.

    Attach to `txn_id` and request the same end again: in pybroker that is idempotent.
    """

    def __init__(self, txn_id: TxnId) -> None:
        super().__init__(str(txn_id))
        self.txn_id = txn_id

    def __str__(self) -> str:
        return (
            f"The outcome of transaction {self.txn_id} is unknown: the broker did not answer in "
            "time. Call client.attach_transaction(txn_id) and end it the same way again"
        )


# One for each ServerError of the wire protocol. ProducerBusy shares its code with NamingError.
_BY_CODE: Final[dict[int, type[PulsarError]]] = {
    error.code: error
    for error in (
        errors.PulsarError,
        errors.MetadataError,
        errors.PersistenceError,
        errors.AuthenticationError,
        errors.AuthorizationError,
        errors.ConsumerBusy,
        errors.ServiceNotReady,
        ProducerBlockedQuotaExceededError,
        ProducerBlockedQuotaExceededException,
        errors.ChecksumError,
        errors.UnsupportedVersionError,
        errors.TopicNotFound,
        errors.SubscriptionNotFound,
        errors.ConsumerNotFound,
        errors.TooManyRequests,
        errors.TopicTerminated,
        errors.ProducerBusy,
        errors.InvalidTopicName,
        errors.IncompatibleSchema,
        errors.ConsumerAssignError,
        errors.TransactionCoordinatorNotFound,
        errors.InvalidTxnStatus,
        errors.NotAllowed,
        errors.TransactionConflict,
        errors.TransactionNotFound,
        errors.ProducerFenced,
    )
}


def from_wire(code: int, message: str) -> PulsarError:
    return _BY_CODE.get(code, PulsarError)(message)


class BoundElsewhere(errors.NotAllowed):
    """A namespace's policy restricts the coordinators whose transactions may take part there."""

    def __init__(self, message: str, allowed: Sequence[int]) -> None:
        super().__init__(message)
        self.allowed = list(allowed)


def refusal(body: Any) -> PulsarError:
    """The exception for an error response."""
    if isinstance(body, pb.CommandNewTxnResponse) and body.allowed_coordinators:
        return BoundElsewhere(body.message, body.allowed_coordinators)
    if isinstance(body, pb.CommandAddSubscriptionToTxnResponse) and body.undecided:
        return errors.Undecided(body.message)
    return from_wire(body.error, body.message)
