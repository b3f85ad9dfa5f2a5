"""One exception class per error code of the wire protocol, each with its HTTP status.

They may be raised anywhere, and become ERROR commands or HTTP answers only at the edge (server/,
admin/). The message is for the user: it names the object and its state, and says what to do.
Clients compare some of Apache Pulsar's own sentences: such a sentence is used unchanged, and the
advice is kept separately.
"""

from typing import ClassVar


class PulsarError(Exception):
    """`code` is a ServerError value of the wire protocol, `http_status` the admin API's status."""

    code: ClassVar[int] = 0  # UnknownError
    http_status: ClassVar[int] = 500

    def __init__(self, sentence: str = "", advice: str = "") -> None:
        """`advice` says what to do, if `sentence` is Apache Pulsar's."""
        super().__init__(f"{sentence}: {advice}" if advice else sentence)
        self.sentence = str(sentence)
        self.advice = advice

    @property
    def on_the_wire(self) -> str:
        """The message of an ERROR command, which has no separate field for the advice."""
        return str(self)


class MetadataError(PulsarError):
    code = 1


class PersistenceError(PulsarError):
    code = 2


class AuthenticationError(PulsarError):
    """The client hears only the sentence: what else it heard would help to guess credentials."""

    code = 3
    http_status = 401

    @property
    def on_the_wire(self) -> str:
        return self.sentence


class AuthorizationError(PulsarError):
    """The wire carries only Apache Pulsar's sentence; the audit log has the advice too."""

    code = 4
    http_status = 403

    @property
    def on_the_wire(self) -> str:
        return self.sentence


class Unauthorized(AuthorizationError):
    """In the admin API: Apache Pulsar's status for refused operations on topics, permissions on
    topics and superuser operations. For namespaces and policies Apache uses 403.
    """

    http_status = 401


class ConsumerBusy(PulsarError):
    code = 5
    http_status = 409


class ServiceNotReady(PulsarError):
    """Clients close the connection or retry, depending on the text."""

    code = 6
    http_status = 503


class QuotaExceededError(PulsarError):
    """Clients wait and retry."""

    code = 7
    http_status = 412


class QuotaExceededException(PulsarError):
    """Clients report it to the publishing application."""

    code = 8
    http_status = 412


class ChecksumError(PulsarError):
    code = 9
    http_status = 400


class UnsupportedVersionError(PulsarError):
    code = 10
    http_status = 400


class TopicNotFound(PulsarError):
    code = 11
    http_status = 404


class SubscriptionNotFound(PulsarError):
    code = 12
    http_status = 404


class ConsumerNotFound(PulsarError):
    code = 13
    http_status = 404


class TooManyRequests(PulsarError):
    code = 14
    http_status = 429


class TopicTerminated(PulsarError):
    code = 15
    http_status = 405


class ProducerBusy(PulsarError):
    code = 16
    http_status = 409


class NamingError(PulsarError):
    """An invalid name. The code, meant for names in use, is Apache Pulsar's choice."""

    code = 16
    http_status = 412


class InvalidTopicName(PulsarError):
    code = 17
    http_status = 412


class IncompatibleSchema(PulsarError):
    code = 18
    http_status = 409


class ConsumerAssignError(PulsarError):
    code = 19
    http_status = 409


class TransactionCoordinatorNotFound(PulsarError):
    code = 20
    http_status = 503


class InvalidTxnStatus(PulsarError):
    code = 21
    http_status = 409


class Undecided(InvalidTxnStatus):
    """Nothing can be added to the transaction, but it has not ended: it is prepared, or is about to
    commit with others.
    """


class NotAllowed(PulsarError):
    code = 22
    http_status = 405


class TooManyTopics(NotAllowed):
    http_status = 412


class NoSuchPartition(NotAllowed):
    """The topic is named like a partition, and only a partitioned topic creates partitions.
    Existing consumers keep retrying after this error, whereas they would give up after
    TopicNotFound.
    """

    http_status = 404


class TransactionConflict(PulsarError):
    code = 23
    http_status = 409


class TransactionNotFound(PulsarError):
    code = 24
    http_status = 404


class ProducerFenced(PulsarError):
    code = 25
    http_status = 409
