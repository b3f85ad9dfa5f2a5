"""`pybroker consume`: shows messages of a subscription, then acknowledges them."""

import argparse
import re
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

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
from pybroker.commands.messages.scalable import acknowledge, is_scalable, is_stream, subscribe
from pybroker.commands.messages.service import connect
from pybroker.commands.messages.shown import Shown
from pybroker.commands.messages.transactions import Transactions, add_transactions
from pybroker.commands.messages.values import Pace, natural
from pybroker.commands.terminal import for_reader

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
_QUIET_MS: Final = 1000  # wait for the first message before saying why there may be none


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
    """Raises PulsarException, and ValueError for options that exclude each other."""
    if options.txn and not options.num_messages and not options.txn_size:
        raise ValueError(
            "--txn without a limit would never commit: add --num-messages or --txn-size"
        )
    with connect(options) as client, counting(look_of(options, client), "consumed") as screen:
        _consume(
            Transactions(client, options), _Source(client, options), screen, is_stream(options)
        )


def _consume(transactions: Transactions, source: "_Source", screen: Screen, stream: bool) -> None:
    """`stream`: acknowledge up to a message."""
    for group in transactions.groups(source.messages()):
        with transactions.begin() as txn:
            taken: dict[Consumer, list[MessageId]] = {}
            for number, (consumer, message) in enumerate(group, start=1):
                screen.show(Shown.of(message))
                if txn is None:
                    acknowledge(consumer, [message.message_id()], None, stream)
                    continue
                taken.setdefault(consumer, []).append(message.message_id())
                if number % _ACKNOWLEDGED_TOGETHER == 0:
                    _acknowledge(taken, txn, stream)
            _acknowledge(taken, txn, stream)


def _acknowledge(
    taken: dict[Consumer, list[MessageId]], txn: Transaction | None, stream: bool
) -> None:
    for consumer, ids in taken.items():
        acknowledge(consumer, ids, txn, stream)
    taken.clear()


class _Source:
    """Receives the requested messages: of one topic, or of all topics that match a pattern."""

    def __init__(self, client: Client, options: Namespace) -> None:
        """Raises PulsarException if subscribing fails, ValueError for a bad pattern."""
        self._client = client
        self._options = options
        self._consumers: list[Consumer] = []  # the next one to ask is first
        self._in_a_row = 0
        self._topics: set[str] = set()
        # And the user may not know it.
        self._may_be_at_end = options.subscription_position == "Latest" and not (
            options.start_timestamp
        )
        self._began_s = time.monotonic()
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
            return consumer, self._receive(consumer)
        while True:
            self._look_again()
            if time.monotonic() > self._began_s + _QUIET_MS / 1000:
                self._explain_silence()
            consumer = self._consumers[0]
            if self._in_a_row < _IN_A_ROW:
                self._in_a_row += 1
                with suppress(Timeout):
                    message = consumer.receive(timeout_millis=_LISTEN_MS)
                    self._may_be_at_end = False
                    return consumer, message
            self._consumers.append(self._consumers.pop(0))
            self._in_a_row = 0

    def _receive(self, consumer: Consumer) -> Message:
        if self._may_be_at_end:
            with suppress(Timeout):
                message = consumer.receive(timeout_millis=_QUIET_MS)
                self._may_be_at_end = False
                return message
            self._explain_silence()
        return consumer.receive()

    def _explain_silence(self) -> None:
        if self._may_be_at_end:
            self._may_be_at_end = False
            options = self._options
            text = (
                f"no message yet: if subscription {options.subscription_name} is new, it begins at "
                f"the end of {options.topic}, with the next message that is published; "
                "with -p Earliest it would begin at the first stored one"
            )
            print(for_reader(sys.stderr, text), file=sys.stderr, flush=True)

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
        kind, settings = _TYPES[options.subscription_type], self._settings()
        if is_scalable(options.topic):
            consumer = subscribe(self._client, options, kind, settings)
        else:
            consumer = self._client.subscribe(
                topics if options.regex else topics[0],
                options.subscription_name,
                kind,
                subscription_mode=SubscriptionMode[options.subscription_mode],
                **settings,
            )
        if options.start_timestamp:
            consumer.seek(options.start_timestamp)
        self._consumers.append(consumer)

    def _settings(self) -> dict[str, Any]:
        options = self._options
        return {
            "initial_position": InitialPosition[options.subscription_position],
            "replicate_subscription_state_enabled": options.replicated,
            "isolation_level": isolation_of(options),
            **settings_of(options),
        }


def _bare(topic: str) -> str:
    return topic.partition("://")[2]


def _pattern(text: str) -> tuple[str, re.Pattern[str]]:
    """A namespace, and the pattern for its topics. Raises ValueError."""
    bare = _bare(text) if "://" in text else text
    if bare.count("/") == 0:
        bare = f"public/default/{bare}"
    parts = bare.split("/", 2)
    if len(parts) < 3 or text.startswith(("non-persistent:", "topic:")):
        raise ValueError(
            f"{text!r} is not a pattern: use name or persistent://tenant/namespace/name"
        )
    try:
        return "/".join(parts[:2]), re.compile(bare)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
