"""`pybroker consume`: shows messages of a subscription, then acknowledges them."""

import argparse
import re
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from pybroker.base.names import TopicName
from pybroker.client import (
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    SubscriptionMode,
    Timeout,
    Transaction,
)
from pybroker.commands.messages.receiving import (
    Screen,
    add_isolation,
    add_look,
    counting,
    isolation_of,
    look_of,
    settings_of,
)
from pybroker.commands.messages.service import connect
from pybroker.commands.messages.shown import Shown
from pybroker.commands.messages.transactions import Transactions, add_transactions
from pybroker.commands.messages.values import Pace, natural

Received = tuple[Consumer, Message]
_TYPES: Final = {
    "Exclusive": ConsumerType.Exclusive,
    "Shared": ConsumerType.Shared,
    "Failover": ConsumerType.Failover,
    "Key_Shared": ConsumerType.KeyShared,
}
_LOOK_AGAIN_S: Final = 30.0  # how often new topics that match the pattern are looked up
_LISTEN_MS: Final = 20  # wait for one of several consumers
_IN_A_ROW: Final = 100  # from one consumer before the next gets its turn
_ACKNOWLEDGED_TOGETHER: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("-s", "--subscription-name", required=True, metavar="NAME")
    add("-t", "--subscription-type", choices=_TYPES, default="Exclusive")
    add("-m", "--subscription-mode", choices=[mode.name for mode in SubscriptionMode],
        default="Durable")  # fmt: skip
    add("-p", "--subscription-position", choices=[each.name for each in InitialPosition],
        default="Latest", help="where a new subscription begins (default Latest)")  # fmt: skip
    add(
        "--regex",
        action="store_true",
        help="TOPIC is a regular expression for a namespace's topics",
    )
    add("-rs", "--replicated", action="store_true", help="mark the subscription as replicated")
    add_isolation(parser)
    add("-stp", "--start-timestamp", type=natural, default=0, metavar="MS",
        help="seek to this publish time first")  # fmt: skip
    add("-etp", "--end-timestamp", type=natural, default=0, metavar="MS",
        help="stop at the first message published later")  # fmt: skip
    add_look(parser, "consume")
    add_transactions(parser, "all acknowledgements")


def run(options: Namespace) -> None:
    """Raises PulsarException, ValueError."""
    if options.txn and not options.num_messages and not options.txn_size:
        raise ValueError(
            "--txn without a limit would never commit: add --num-messages or --txn-size"
        )
    with connect(options) as client, counting(look_of(options, client), "consumed") as screen:
        _consume(Transactions(client, options), _Source(client, options), screen)


def _consume(transactions: Transactions, source: "_Source", screen: Screen) -> None:
    for group in transactions.groups(source.messages()):
        with transactions.begin() as txn:
            taken: dict[Consumer, list[MessageId]] = {}
            for number, (consumer, message) in enumerate(group, start=1):
                screen.show(Shown.of(message))
                if txn is None:
                    consumer.acknowledge(message)
                    continue
                taken.setdefault(consumer, []).append(message.message_id())
                if number % _ACKNOWLEDGED_TOGETHER == 0:
                    _acknowledge(taken, txn)
            _acknowledge(taken, txn)


def _acknowledge(taken: dict[Consumer, list[MessageId]], txn: Transaction | None) -> None:
    for consumer, ids in taken.items():
        consumer.acknowledge(ids, txn=txn)
    taken.clear()


class _Source:
    """Receives the requested messages: of one topic, or of all topics that match a pattern."""

    def __init__(self, client: Client, options: Namespace) -> None:
        """Raises PulsarException, ValueError."""
        self._client = client
        self._options = options
        self._consumers: list[Consumer] = []  # the next one to ask is first
        self._in_a_row = 0
        self._topics: set[str] = set()
        self._looked_s = time.monotonic()
        if options.regex:
            self._pattern = _pattern(options.topic)
            self._look()
        else:
            self._subscribe([options.topic])

    def messages(self) -> Iterator[Received]:
        options = self._options
        pace = Pace(options.rate)
        count = 0
        while not options.num_messages or count < options.num_messages:
            pace.wait()
            consumer, message = self._next()
            if 0 < options.end_timestamp < message.publish_timestamp():
                return
            count += 1
            yield consumer, message

    def _next(self) -> Received:
        if not self._options.regex:
            (consumer,) = self._consumers
            return consumer, consumer.receive()
        while True:
            self._look_again()
            consumer = self._consumers[0]
            if self._in_a_row < _IN_A_ROW:
                self._in_a_row += 1
                with suppress(Timeout):
                    return consumer, consumer.receive(timeout_millis=_LISTEN_MS)
            self._consumers.append(self._consumers.pop(0))
            self._in_a_row = 0

    def _look_again(self) -> None:
        """Subscribes to new topics. Returns when there is at least one consumer."""
        if self._consumers and time.monotonic() > self._looked_s + _LOOK_AGAIN_S:
            self._look()
        while not self._consumers:
            time.sleep(1.0)
            self._look()

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        namespace, pattern = self._pattern
        names = map(TopicName.parse, self._client.get_topics_of_namespace(namespace))
        found = {str(name.partitioned_name) for name in names if not name.internal}
        new = sorted(topic for topic in found - self._topics if pattern.fullmatch(_bare(topic)))
        if new:
            self._subscribe(new)

    def _subscribe(self, topics: list[str]) -> None:
        options = self._options
        self._topics.update(topics)
        consumer = self._client.subscribe(
            topics if options.regex else topics[0],
            options.subscription_name,
            _TYPES[options.subscription_type],
            initial_position=InitialPosition[options.subscription_position],
            subscription_mode=SubscriptionMode[options.subscription_mode],
            replicate_subscription_state_enabled=options.replicated,
            isolation_level=isolation_of(options),
            **settings_of(options),
        )
        if options.start_timestamp:
            consumer.seek(options.start_timestamp)
        self._consumers.append(consumer)


def _bare(topic: str) -> str:
    return topic.partition("://")[2]


def _pattern(text: str) -> tuple[str, re.Pattern[str]]:
    """A namespace, and the pattern for its topics. Raises ValueError."""
    bare = _bare(text) if "://" in text else text
    if bare.count("/") == 0:
        bare = f"public/default/{bare}"
    parts = bare.split("/", 2)
    if len(parts) < 3 or text.startswith("non-persistent:"):
        raise ValueError(
            f"{text!r} is not a pattern: use name or persistent://tenant/namespace/name"
        )
    try:
        return "/".join(parts[:2]), re.compile(bare)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
