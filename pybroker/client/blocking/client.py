"""The blocking client: pybroker.client.aio, run on an event loop on the Client's own thread.

A call that needs the broker's answer blocks until it arrives. Calls that need not wait (send_async,
plain acknowledgements, messages already in the queue) cost no round trip to the loop's thread.
Producers, consumers and transactions may be used from several threads. Callbacks of send_async
run on the loop's thread, so they must be quick and must not make blocking calls.
"""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock, SystemClock
from pybroker.client import aio
from pybroker.client.blocking.consumer import Consumer, Reader
from pybroker.client.blocking.loop_thread import LoopThread
from pybroker.client.blocking.producer import Producer
from pybroker.client.blocking.thread_queue import ThreadQueue
from pybroker.client.blocking.transaction import Transaction, TransactionGroup
from pybroker.client.errors import PulsarException
from pybroker.client.messages import MessageId
from pybroker.client.options import ConsumerType
from pybroker.client.topic_questions import TopicQuestion, TopicState
from pybroker.client.transactions.prepared import PreparedTransaction
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.client.blocking.scalable import CheckpointConsumer, StreamConsumer
    from pybroker.client.scalable.checkpoint import Checkpoint


class Client:
    """Connections to one cluster, and the producers, consumers and readers on them. One per
    process, not picklable.

    The arguments are those of pybroker.client.aio.Client.
    """

    def __init__(self, service_url: str, *arguments: Any, **options: Any) -> None:
        self._clock: Clock = options.get("clock") or SystemClock()
        self._thread = LoopThread("pybroker-client")
        try:
            self._core = aio.Client(service_url, *arguments, **options)
        except BaseException:
            self._thread.stop()
            raise
        self._core.keep_messages_in(ThreadQueue)
        self._thread.on_abandonment(self._core.close)

    @property
    def core(self) -> aio.Client:
        """The client of asyncio inside. Only its own thread may call it."""
        return self._core

    def create_producer(
        self, topic: str, producer_name: str | None = None, **options: Any
    ) -> Producer:
        """`options` are the fields of ProducerOptions, as in the official client."""
        core = self._thread.call(self._core.create_producer(topic, producer_name, **options))
        space = None
        if options.get("block_if_queue_full"):
            space = self._thread.space(core.max_pending_messages)
        return Producer(self._thread, core, self._clock, space)

    def subscribe(
        self,
        topic: str | Sequence[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        **options: Any,
    ) -> Consumer:
        """Subscribes to a topic, or to every topic of a list. `options` are the fields of
        ConsumerOptions.
        """
        core = self._thread.call(
            self._core.subscribe(topic, subscription_name, consumer_type, **options)
        )
        return Consumer(self._thread, core)

    def create_queue_consumer(self, topic: str, subscription_name: str, **options: Any) -> Consumer:
        """Receives the messages of a scalable topic (topic://) in no order, shared with the other
        queue consumers of the subscription. See pybroker.client.aio.
        """
        core = self._thread.call(
            self._core.create_queue_consumer(topic, subscription_name, **options)
        )
        return Consumer(self._thread, core)

    def create_stream_consumer(
        self, topic: str, subscription_name: str, **options: Any
    ) -> "StreamConsumer":
        """Receives the messages of a scalable topic (topic://), those of each key in order, also
        across splits and merges. See pybroker.client.aio.
        """
        from pybroker.client.blocking.scalable import StreamConsumer

        core = self._thread.call(
            self._core.create_stream_consumer(topic, subscription_name, **options)
        )
        return StreamConsumer(self._thread, core)

    def create_checkpoint_consumer(
        self, topic: str, start: "Checkpoint", **options: Any
    ) -> "CheckpointConsumer":
        """Receives the messages of a scalable topic (topic://) after `start`, without a
        subscription. See pybroker.client.aio.
        """
        from pybroker.client.blocking.scalable import CheckpointConsumer

        core = self._thread.call(self._core.create_checkpoint_consumer(topic, start, **options))
        return CheckpointConsumer(self._thread, core)

    def create_reader(self, topic: str, start_message_id: MessageId, **options: Any) -> Reader:
        """Reads after `start_message_id` (or from it, if inclusive), without a subscription."""
        core = self._thread.call(self._core.create_reader(topic, start_message_id, **options))
        return Reader(self._thread, core)

    def get_topic_partitions(self, topic: str, create: bool = True) -> list[str]:
        """The partitions' names; the topic's own name if it has none: see pybroker.client.aio."""
        return self._thread.call(self._core.get_topic_partitions(topic, create))

    def get_topics_of_namespace(self, namespace: str) -> list[str]:
        """The namespace's persistent topics: see pybroker.client.aio."""
        return self._thread.call(self._core.get_topics_of_namespace(namespace))

    def connections_made(self) -> int:
        """See pybroker.client.aio."""
        return self._core.connections_made()

    def get_schema(self, topic: str, version: bytes | None = None) -> pb.Schema | None:
        """The topic's newest schema, or the given version: see pybroker.client.aio."""
        return self._thread.call(self._core.get_schema(topic, version))

    def answers_topic_questions(self) -> bool:
        """Whether the broker answers `ask_topics`; Apache Pulsar does not."""
        return self._thread.call(self._core.answers_topic_questions())

    def ask_topics(
        self, questions: Sequence[TopicQuestion], *arguments: Any, **options: Any
    ) -> list[TopicState]:
        """Asks many topics for their ends, and where subscriptions are: see pybroker.client.aio."""
        return self._thread.call(self._core.ask_topics(questions, *arguments, **options))

    def new_transaction(
        self,
        timeout_ms: int = 60_000,
        beside: TxnId | None = None,
        namespace: str | None = None,
        abort_on_disconnect: bool = False,
    ) -> Transaction:
        """Begins a transaction; the broker aborts it if it has not ended within `timeout_ms`.
        `beside`: use the same coordinator as that transaction, so that both can commit together.
        `namespace`: the broker itself adds the topics used there. `abort_on_disconnect`: abort it
        as soon as the connection breaks, unless a commit has been decided. See pybroker.client.aio.
        """
        beginning = self._core.new_transaction(timeout_ms, beside, namespace, abort_on_disconnect)
        core = self._thread.call(beginning)
        return Transaction(self._thread, core)

    def new_transactions(
        self,
        count: int,
        timeout_ms: int = 60_000,
        namespace: str | None = None,
        abort_on_disconnect: bool = False,
    ) -> TransactionGroup:
        """Begins several transactions that commit atomically. `with client.new_transactions(2) as
        (debits, credits):` commits both at the end, and aborts both on an exception.

        Raises NotAllowed if the broker cannot do this, like Apache Pulsar: see `commits_together`.
        """
        core = self._thread.call(
            self._core.new_transactions(count, timeout_ms, namespace, abort_on_disconnect)
        )
        return TransactionGroup(self._thread, [Transaction(self._thread, each) for each in core])

    def commit_together(self, transactions: Sequence[Transaction]) -> None:
        """Commits all of them or none: see pybroker.client.aio."""
        TransactionGroup(self._thread, transactions).commit()

    def commits_together(self) -> bool:
        """Whether the broker can commit several transactions atomically; Apache Pulsar cannot."""
        return self._thread.call(self._core.commits_together())

    def prepared_transactions(self, name: str | None = None) -> list[PreparedTransaction]:
        """The prepared transactions that this client may decide: see pybroker.client.aio."""
        return self._thread.call(self._core.prepared_transactions(name))

    def attach_transaction(self, txn_id: TxnId) -> Transaction:
        """Another process's transaction: see pybroker.client.aio."""
        return Transaction(self._thread, self._core.attach_transaction(txn_id))

    def close(self) -> None:
        """Closes all producers, consumers and readers first. Open transactions time out.

        Calls waiting in other threads raise AlreadyClosed. A client closes automatically once
        nothing refers to it or to anything created through it.
        """
        self._thread.refuse_on_own_thread()
        # It may be closed already, or belong to the parent process of a fork.
        with contextlib.suppress(PulsarException):
            self._thread.call(self._core.close())
        self._thread.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Client cannot be pickled: create one where it is needed, and pass a service URL, a "
            "transaction's TxnId or a MessageId instead"
        )
