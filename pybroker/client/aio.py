"""The asyncio client. `pybroker.client` is the blocking version, with the same names.

    async with Client("pulsar://localhost:6650") as client:
        producer = await client.create_producer("debits")
        consumer = await client.subscribe("transfers", "ledger")
        message = await consumer.receive()
        async with await client.new_transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
            await producer.send(message.data(), txn=txn)

Names and arguments are the official Python client's wherever it has them; transactions, which it
lacks, follow the official Java client. Everything runs on the current event loop. Time and
randomness come in through `clock` and `rng`, so a simulated loop makes runs repeatable. Errors are
in pybroker.client.
"""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Clock, SystemClock
from pybroker.client import topic_questions, tracing
from pybroker.client.closing import Closing
from pybroker.client.connection.auth import Authentication
from pybroker.client.connection.client_session import ClientSession
from pybroker.client.connection.cluster import Cluster, ConnectionOptions, Dial
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.entry_reader import EntryReader
from pybroker.client.consuming.reader import Reader
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.consuming.subscribing import Start, SubscriptionSpec
from pybroker.client.crypto_keys import CryptoKeyReader
from pybroker.client.errors import AlreadyClosed, InvalidConfiguration
from pybroker.client.messages import Message, MessageId
from pybroker.client.options import (
    BatchingType,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerKeySharedPolicy,
    ConsumerOptions,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    IsolationLevel,
    KeySharedMode,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerOptions,
    Result,
)
from pybroker.client.producing.partitions_producer import PartitionsProducer
from pybroker.client.producing.producer import Producer
from pybroker.client.topic_questions import TopicQuestion, TopicState
from pybroker.client.transactions.coordinator import Coordinators
from pybroker.client.transactions.group import TransactionGroup, begin_together, commit_together
from pybroker.client.transactions.prepared import PreparedTransaction
from pybroker.client.transactions.transaction import Transaction, TxnState
from pybroker.wire import pulsar_api_pb2 as pb

__all__ = [
    "BatchingType",
    "Client",
    "CompressionType",
    "Consumer",
    "ConsumerBatchReceivePolicy",
    "ConsumerKeySharedPolicy",
    "ConsumerType",
    "HashingScheme",
    "InitialPosition",
    "IsolationLevel",
    "KeySharedMode",
    "Message",
    "MessageId",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "Reader",
    "Result",
    "Transaction",
    "TransactionGroup",
    "TxnId",
    "TxnState",
]

if TYPE_CHECKING:
    from pybroker.client.scalable.checkpoint import Checkpoint
    from pybroker.client.scalable.checkpoint_consumer import CheckpointConsumer
    from pybroker.client.scalable.stream_consumer import StreamConsumer

_SCALABLE: Final = "topic://"


class Client(Closing):
    """Connections to one cluster, and the producers, consumers and readers created on them."""

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        *,
        connection_timeout_ms: int = 10_000,
        listener_name: str | None = None,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        enable_transaction: bool = True,
        transactional_id: str | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`service_url`: pulsar://host:6650 or pulsar+ssl://; separate several hosts by commas.

        `transactional_id` identifies the work that this client does. Its first producer or
        transaction fences older clients with the same id: their open transactions are aborted, and
        their producers and transactions raise ProducerFenced or InvalidTxnStatus. Differs: raises
        NotAllowed with Apache Pulsar, which has no such fencing.
        """
        options = ConnectionOptions(
            operation_timeout_s=operation_timeout_seconds,
            connection_timeout_s=connection_timeout_ms / 1000,
            authentication=authentication,
            listener_name=listener_name,
            tls_trust_certs_file_path=tls_trust_certs_file_path,
            tls_allow_insecure_connection=tls_allow_insecure_connection,
            tls_validate_hostname=tls_validate_hostname,
            tls_private_key_file_path=tls_private_key_file_path,
            tls_certificate_file_path=tls_certificate_file_path,
        )
        tracing.enable_as_configured()
        self._cluster = Cluster(
            service_url, options, clock or SystemClock(), rng or random.Random()
        )
        if transactional_id is not None:
            self._cluster.session = ClientSession(transactional_id, self._cluster.rng)
        self._cluster.transacts = enable_transaction
        self._coordinators = Coordinators(self._cluster) if enable_transaction else None
        self._questions = topic_questions.Questions(self._cluster)
        self._closed = False

    def keep_messages_in(self, new_queue: Callable[[], ReceiveQueue]) -> None:
        """Sets the kind of receive queue, for a wrapper whose callers are on other threads. Call it
        before creating anything.
        """
        self._cluster.new_queue = new_queue

    def connect_by(
        self, dial: Dial, max_message_bytes: int, passes: Callable[[Exception], bool]
    ) -> None:
        """Sets how connections are opened, how large a received message may be, and which errors
        are retried, for a broker's own clients. Call it before creating anything.
        """
        self._cluster.passes = passes
        self._cluster.dial = dial
        self._cluster.max_message_bytes = max_message_bytes

    async def create_producer(
        self, topic: str, producer_name: str | None = None, **options: Any
    ) -> Producer:
        """`options` are the fields of ProducerOptions, as in the official client. A scalable topic
        (topic://) is created if it is missing, and its keys always have Murmur3_32Hash. With
        follows_migration=True the producer goes on when an ordinary topic is made scalable.
        """
        chosen = ProducerOptions(producer_name, **options)
        if topic.startswith(_SCALABLE) or chosen.follows_migration:
            from pybroker.client.scalable import creating  # few programs need it

            return await creating.new_producer(self._cluster, topic, chosen)
        partitions = await self._partitions(topic)
        followed = [topic] if _are_parts(topic, partitions) else []
        producer = PartitionsProducer(self._cluster, topic, partitions, chosen, followed)
        await producer.open()
        return producer

    async def subscribe(
        self,
        topic: str | Sequence[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        **options: Any,
    ) -> Consumer:
        """Subscribes to a topic, or to every topic of a list. `options` are the fields of
        ConsumerOptions.
        """
        topics = [topic] if isinstance(topic, str) else list(topic)
        if not topics:
            raise InvalidConfiguration("The list of topics to subscribe to is empty")
        for each in topics:
            _refuse_scalable(each)
        chosen = ConsumerOptions(consumer_type, **options)
        return await self._consume(topics, SubscriptionSpec.of(subscription_name, chosen))

    async def create_queue_consumer(
        self, topic: str, subscription_name: str, **options: Any
    ) -> Consumer:
        """Receives the messages of a scalable topic (topic://) in no order, shared with the other
        queue consumers of the subscription; each message is acknowledged by itself. `options` are
        the fields of ConsumerOptions. An ordinary topic is consumed in the same way.
        """
        from pybroker.client.scalable import creating

        chosen = ConsumerOptions(ConsumerType.Shared, **options)
        begin = self.new_transaction  # for dead letters
        return await creating.new_queue_consumer(
            self._cluster, topic, subscription_name, chosen, begin
        )

    async def create_stream_consumer(
        self, topic: str, subscription_name: str, **options: Any
    ) -> "StreamConsumer":
        """Receives the messages of a scalable topic (topic://), those of each key in order, also
        across splits and merges; acknowledge_cumulative acknowledges everything that was received
        up to a message. The stream consumers of a subscription divide the segments among them.
        `options` are the fields of ConsumerOptions.
        """
        from pybroker.client.scalable import creating

        chosen = ConsumerOptions(ConsumerType.Exclusive, **options)
        return await creating.new_stream_consumer(self._cluster, topic, subscription_name, chosen)

    async def create_checkpoint_consumer(
        self, topic: str, start: "Checkpoint", *, group: str | None = None, **options: Any
    ) -> "CheckpointConsumer":
        """Receives the messages of a scalable topic (topic://) after `start`, without a
        subscription: whoever has the consumer's `checkpoint` can go on there. The consumers of a
        `group` divide the segments; one that gets a segment later begins there after `start`, too.
        `options` are fields of ConsumerOptions.
        """
        from pybroker.client.scalable import creating

        chosen = ConsumerOptions(ConsumerType.Exclusive, **options)
        return await creating.new_checkpoint_consumer(self._cluster, topic, start, group, chosen)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        *,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        receiver_queue_size: int = 1000,
        crypto_key_reader: CryptoKeyReader | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_read_compacted: bool = False,
        start_message_id_inclusive: bool = False,
        max_pending_chunked_message: int = 10,
        properties: dict[str, str] | None = None,
        create_topic: bool = True,
        isolation_level: IsolationLevel | None = None,
    ) -> Reader:
        """Reads after `start_message_id` (or from it, if inclusive), without a subscription.

        `create_topic=False`: raises TopicNotFound for a topic that does not exist, and the reader
        raises it once its topic is deleted. Differs: official clients always let the broker create
        the topic.
        """
        _refuse_scalable(topic)
        name = f"{subscription_role_prefix or 'reader'}-{self._cluster.rng.getrandbits(40):010x}"
        options = ConsumerOptions(
            consumer_type=ConsumerType.Exclusive,
            initial_position=InitialPosition.Latest,
            receiver_queue_size=receiver_queue_size,
            crypto_key_reader=crypto_key_reader,
            crypto_failure_action=crypto_failure_action,
            consumer_name=reader_name,
            is_read_compacted=is_read_compacted,
            start_message_id_inclusive=start_message_id_inclusive,
            max_pending_chunked_message=max_pending_chunked_message,
            properties=properties,
            isolation_level=isolation_level,
        )
        start = Start(start_message_id, start_message_id_inclusive)
        spec = SubscriptionSpec(name, options, start, create_topic)
        consumer = await self._consume([topic], spec)
        if start_message_id_inclusive and start_message_id == MessageId.latest:
            try:
                await consumer.seek_last_messages()
            except BaseException:
                self._cluster.close_behind(consumer, topic)
                raise
        return Reader(consumer)

    async def create_entry_reader(
        self, topic: str, start_message_id: MessageId, permits: int = 100_000
    ) -> EntryReader:
        """Reads stored entries after `start_message_id` of one topic or partition. Raises
        TopicNotFound if it does not exist.

        `permits`: how many messages the broker may send ahead. Differs: not in official clients.
        """
        reader = EntryReader(self._cluster, str(TopicName.parse(topic)), start_message_id, permits)
        await self._cluster.open_all(reader, [reader])
        return reader

    async def _consume(self, topics: Sequence[str], spec: SubscriptionSpec) -> Consumer:
        by_topic = {topic: await self._partitions(topic, spec.create_topic) for topic in topics}
        partitions = [name for names in by_topic.values() for name in names]
        followed = [topic for topic, names in by_topic.items() if _are_parts(topic, names)]
        if spec.start is not None and spec.start.left_out is not None and len(partitions) > 1:
            raise InvalidConfiguration(
                f"{topics[0]} has {len(partitions)} partitions; a message id is a position in one "
                "of them: create a reader for that partition"
            )
        consumer = Consumer(self._cluster, ",".join(topics), partitions, spec, followed)
        await consumer.open()
        return consumer

    async def get_topic_partitions(self, topic: str, create: bool = True) -> list[str]:
        """The partitions' names; the topic's own name if it has none; of a scalable topic, its
        segments' names, parents before their children.

        `create=False`: the broker does not create the topic; raises TopicNotFound if it does not
        exist. Differs: official clients always let the broker create it.
        """
        if topic.startswith(_SCALABLE):
            from pybroker.client.scalable import creating

            return await creating.segment_topics(self._cluster, topic, create)
        return await self._partitions(topic, create)

    async def get_topics_of_namespace(
        self, namespace: str, pattern: str | None = None
    ) -> list[str]:
        """The namespace's persistent topics; of a partitioned topic, its partitions. Only those
        whose whole name matches the `pattern`, if there is one: a regular expression, which the
        broker applies; NotAllowed if it does not. Differs: official clients use this only for
        pattern subscriptions and do not expose it."""
        if pattern is not None:
            return await self._cluster.topics_that_match(namespace, pattern)
        return await self._cluster.topics_of_namespace(namespace)

    def connections_made(self) -> int:
        """How many connections have been opened so far; growth may mean that one was lost.
        Differs: official clients do not expose it."""
        return self._cluster.connections_made

    async def get_schema(self, topic: str, version: bytes | None = None) -> pb.Schema | None:
        """The topic's newest schema, or the given version; None if there is none. Differs: official
        clients do not expose it."""
        return await self._cluster.schema(str(TopicName.parse(topic)), version)

    async def answers_topic_questions(self) -> bool:
        """Whether the broker answers `ask_topics`; Apache Pulsar does not."""
        return await topic_questions.can_ask(self._cluster)

    async def ask_topics(
        self,
        questions: Sequence[TopicQuestion],
        subscription: str | None = None,
        initial_position: InitialPosition | None = None,
        sample_messages: int = 0,
        schema_only: bool = False,
        read_bytes: int = 0,
    ) -> list[TopicState]:
        """Asks for the end of many topics, what follows a position, and a subscription's position,
        without a consumer on any of them. Returns one answer for each question, in order.

        A missing subscription is created at `initial_position`, if that is given; topics are not
        created. `schema_only`: return only the digests of schemas. `read_bytes`: return at most
        this many bytes for each 500 questions that have `read_to`, from each broker. Differs: see
        pybroker.client.topic_questions. Raises NotAllowed if the broker does not support this.
        """
        asking = topic_questions.Asking(
            subscription, initial_position, sample_messages, schema_only, read_bytes
        )
        return await self._questions.ask(questions, asking)

    async def _partitions(self, topic: str, create: bool = True) -> list[str]:
        if self._closed:
            raise AlreadyClosed("The client is closed")
        if (name := TopicName.parse(topic)).partition >= 0:
            return [str(name)]
        return await self._cluster.partition_topics(topic, create)

    # --- transactions -----------------------------------------------------------------------

    async def new_transaction(
        self,
        timeout_ms: int = 60_000,
        beside: TxnId | None = None,
        namespace: str | None = None,
        abort_on_disconnect: bool = False,
    ) -> Transaction:
        """Begins a transaction; the broker aborts it if it has not ended within `timeout_ms`.
        `beside`: use the same coordinator as that transaction, so that both can commit together.

        `namespace`, such as "public/default": the broker itself adds the topics and subscriptions
        used in that namespace, which saves a request for each. Differs: with Apache Pulsar the
        client sends those requests.

        `abort_on_disconnect`: abort it as soon as the connection breaks, unless a commit has been
        decided. Differs: raises NotAllowed with Apache Pulsar.
        """
        return await self._transactions().new_transaction(
            timeout_ms, beside, namespace, abort_on_disconnect
        )

    async def new_transactions(
        self,
        count: int,
        timeout_ms: int = 60_000,
        namespace: str | None = None,
        abort_on_disconnect: bool = False,
    ) -> TransactionGroup:
        """Begins several transactions that commit atomically. Use the group as `async with`.
        `namespace`, `abort_on_disconnect`: see `new_transaction`.

        Raises NotAllowed if the broker cannot do this, like Apache Pulsar: see `commits_together`.
        """
        return await begin_together(
            self._transactions(), count, timeout_ms, namespace, abort_on_disconnect
        )

    async def commit_together(self, transactions: Sequence[Transaction]) -> None:
        """Commits all of them or none: transactions of `new_transactions`, or begun with `beside`.

        Raises TransactionAborted if an operation of any of them failed, InvalidTxnStatus if one
        was aborted meanwhile or has committed alone (the others are aborted then), and
        TransactionOutcomeUnknown if the broker did not answer in time.
        """
        await commit_together(transactions)

    async def commits_together(self) -> bool:
        """Whether the broker can commit several transactions atomically; Apache Pulsar cannot."""
        return await self._transactions().commits_together()

    async def prepared_transactions(self, name: str | None = None) -> list[PreparedTransaction]:
        """Those that this client may decide: prepared by its role, by any process, and not decided
        since. `name`: only those prepared with it. See Transaction.prepare.
        """
        return await self._transactions().prepared(name)

    def attach_transaction(self, txn_id: TxnId) -> Transaction:
        """Another process's transaction, to publish and acknowledge in, and to end.

        Differs: not in official clients. Each process tracks only its own operations: the process
        that ends the transaction must know that the others have finished theirs.
        """
        return self._transactions().attach(TxnId(*txn_id))

    def _transactions(self) -> Coordinators:
        if self._closed:
            raise AlreadyClosed("The client is closed")
        if self._coordinators is None:
            raise InvalidConfiguration("This Client was created with enable_transaction=False")
        return self._coordinators

    # --- closing ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes all producers, consumers and readers first. Open transactions time out."""
        if self._closed:
            return
        self._closed = True
        await self._cluster.close()


def _refuse_scalable(topic: str) -> None:
    if topic.startswith(_SCALABLE):
        raise InvalidConfiguration(
            f"{topic} is a scalable topic: read it with create_queue_consumer, "
            "create_stream_consumer or create_checkpoint_consumer"
        )


def _are_parts(topic: str, names: Sequence[str]) -> bool:
    """Whether `names` are the partitions of `topic`, whose number may grow."""
    return list(names) != [str(TopicName.parse(topic))]
