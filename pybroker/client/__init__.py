"""A client for this broker and for Apache Pulsar, in pure Python, with transactions.

    with Client("pulsar://localhost:6650") as client:
        producer = client.create_producer("debits")
        consumer = client.subscribe("transfers", "ledger")
        message = consumer.receive()
        with client.new_transaction() as txn:
            consumer.acknowledge(message, txn=txn)
            producer.send(message.data(), txn=txn)

Calls block; `pybroker.client.aio` is the asyncio version. Names are the official Python client's.
"""

from pybroker.base.errors import (
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidTopicName,
    InvalidTxnStatus,
    NotAllowed,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
    SubscriptionNotFound,
    TooManyRequests,
    TopicNotFound,
    TopicTerminated,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.client.blocking.client import Client
from pybroker.client.blocking.consumer import Consumer, Reader
from pybroker.client.blocking.producer import Producer
from pybroker.client.blocking.transaction import Transaction, TransactionGroup
from pybroker.client.connection.auth import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
)
from pybroker.client.crypto_keys import CryptoKeyReader
from pybroker.client.errors import (
    AlreadyClosed,
    ClientError,
    ConnectError,
    CryptoError,
    InvalidConfiguration,
    MessageTooBig,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnsupportedCompression,
)
from pybroker.client.messages import Message, MessageId, Outgoing
from pybroker.client.options import (
    BatchingType,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    IsolationLevel,
    KeySharedMode,
    PartitionsRoutingMode,
    ProducerAccessMode,
    Result,
    SchemaType,
    SubscriptionMode,
    TopicSchema,
)
from pybroker.client.producing.batching import EncodedBatch, encode_batch
from pybroker.client.producing.routing import partition_for_key
from pybroker.client.transactions.prepared import PreparedTransaction
from pybroker.client.transactions.transaction import TxnState

__all__ = [
    "AlreadyClosed",
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationError",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AuthorizationError",
    "BatchingType",
    "Client",
    "ClientError",
    "CompressionType",
    "ConnectError",
    "Consumer",
    "ConsumerBatchReceivePolicy",
    "ConsumerBusy",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "ConsumerType",
    "CryptoError",
    "CryptoKeyReader",
    "EncodedBatch",
    "HashingScheme",
    "IncompatibleSchema",
    "InitialPosition",
    "InvalidConfiguration",
    "InvalidTopicName",
    "InvalidTxnStatus",
    "IsolationLevel",
    "KeySharedMode",
    "Message",
    "MessageId",
    "MessageTooBig",
    "NotAllowed",
    "Outgoing",
    "PartitionsRoutingMode",
    "PreparedTransaction",
    "Producer",
    "ProducerAccessMode",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerQueueIsFull",
    "PulsarException",
    "Reader",
    "Result",
    "SchemaType",
    "ServiceNotReady",
    "SubscriptionMode",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyRequests",
    "TopicNotFound",
    "TopicSchema",
    "TopicTerminated",
    "Transaction",
    "TransactionAborted",
    "TransactionConflict",
    "TransactionCoordinatorNotFound",
    "TransactionGroup",
    "TransactionNotFound",
    "TransactionOutcomeUnknown",
    "TxnId",
    "TxnState",
    "UnsupportedCompression",
    "encode_batch",
    "partition_for_key",
]
