"""What the client raises: the wire's own errors, and those that only a client can meet.

A refusal by the broker arrives as a code and a text; `from_wire` makes it the exception that the
broker raised (pybroker.base.errors, one class per code). Everything derives from PulsarException.
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
    """Found on this side of the connection."""


class Timeout(ClientError, TimeoutError):
    """Nothing came in the time given. Of a send: the message may or may not be stored."""


class ConnectError(ClientError, ConnectionError):
    """No connection, or it broke before the answer came."""


class AlreadyClosed(ClientError):
    pass


class ProducerQueueIsFull(ClientError):
    pass


class MessageTooBig(ClientError):
    pass


class InvalidConfiguration(ClientError, ValueError):
    pass


class CryptoError(ClientError):
    """Something encrypted cannot be decrypted here, or something plain not encrypted."""


class UnsupportedCompression(ClientError):
    """The codec's library is not installed here."""


class TransactionAborted(InvalidTxnStatus):
    """Commit was asked for, but an operation had failed, so the transaction was aborted.

    The failure is the `__cause__`. Nothing of the transaction will become visible: run it again.
    """


class TransactionOutcomeUnknown(ClientError):
    """The broker did not confirm the end before the operation timeout: it may have happened.

    Attach to `txn_id` and ask again for the same end: against this broker that is harmless.
    """

    def __init__(self, txn_id: TxnId) -> None:
        super().__init__(str(txn_id))
        self.txn_id = txn_id

    def __str__(self) -> str:
        return (
            f"Whether transaction {self.txn_id} ended is not known: the broker could not be asked "
            "in time. Call client.attach_transaction(txn_id) and end it the same way again"
        )


# One for each ServerError of the wire protocol. ProducerBusy has the code of NamingError, too.
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
    """A namespace's policy names the coordinators whose transactions take part there."""

    def __init__(self, message: str, allowed: Sequence[int]) -> None:
        super().__init__(message)
        self.allowed = list(allowed)


def refusal(body: Any) -> PulsarError:
    """What an answer with an error says."""
    if isinstance(body, pb.CommandNewTxnResponse) and body.allowed_coordinators:
        return BoundElsewhere(body.message, body.allowed_coordinators)
    return from_wire(body.error, body.message)
