"""One exception class per error code of the wire protocol, each with its HTTP status.

Raise them anywhere; they become ERROR commands or HTTP answers only at the edge (server/, admin/).
The message is for the user: it names the thing, the state it is in, and what to do. Where Apache
Pulsar has a sentence for a refusal, clients compare it: that is the message then, and what to do
stands beside it.
"""

from typing import ClassVar


class PulsarError(Exception):
    """`code` is a ServerError value of the wire protocol, `http_status` its admin-API answer."""

    code: ClassVar[int] = 0  # UnknownError
    http_status: ClassVar[int] = 500

    def __init__(self, sentence: str = "", advice: str = "") -> None:
        """`advice` is what `sentence`, where that is Apache Pulsar's, does not say."""
        super().__init__(f"{sentence}: {advice}" if advice else sentence)
        self.sentence = str(sentence)
        self.advice = advice

    @property
    def on_the_wire(self) -> str:
        """The message of an ERROR command, which has no second field."""
        return str(self)


class MetadataError(PulsarError):
    code = 1


class PersistenceError(PulsarError):
    code = 2


class AuthenticationError(PulsarError):
    code = 3
    http_status = 401


class AuthorizationError(PulsarError):
    """On the wire it is Apache Pulsar's sentence alone; the audit log has the whole."""

    code = 4
    http_status = 403

    @property
    def on_the_wire(self) -> str:
        return self.sentence


class Unauthorized(AuthorizationError):
    """By the admin API, with the status that Apache Pulsar has for an operation on a topic, and
    for what is a superuser's. Of namespaces and policies it says 403.
    """

    http_status = 401


class ConsumerBusy(PulsarError):
    code = 5
    http_status = 409


class ServiceNotReady(PulsarError):
    """The client closes its connection, or retries, depending on the text."""

    code = 6
    http_status = 503


class QuotaExceededError(PulsarError):
    """Clients wait, and come again."""

    code = 7
    http_status = 412


class QuotaExceededException(PulsarError):
    """Clients tell whoever publishes."""

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
    """A name that nothing may have; the code, meant for names in use, is Apache Pulsar's choice."""

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


class NotAllowed(PulsarError):
    code = 22
    http_status = 405


class TooManyTopics(NotAllowed):
    http_status = 412


class NoSuchPartition(NotAllowed):
    """A topic with a partition's name, which only a partitioned topic makes. Consumers that were
    at work go on trying, where they would give up a topic that is not found.
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
