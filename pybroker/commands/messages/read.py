"""`pybroker read`: shows messages from a position on, without a subscription."""

import argparse
from argparse import Namespace
from collections.abc import Callable

from pybroker.client import Client, Message, MessageId
from pybroker.commands.messages.receiving import (
    add_isolation,
    add_look,
    counting,
    isolation_of,
    look_of,
    settings_of,
)
from pybroker.commands.messages.scalable import is_scalable, read
from pybroker.commands.messages.service import connect
from pybroker.commands.messages.shown import Shown
from pybroker.commands.messages.values import Pace, message_id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("-m", "--start-message-id", type=message_id, default=MessageId.latest, metavar="ID",
        help="start after: latest (default), earliest or ledgerId:entryId")  # fmt: skip
    add("-i", "--start-message-id-inclusive", action="store_true", help="include the start message")
    add(
        "-rc", "--readCompacted", action="store_true", help="read only the last message of each key"
    )
    add_isolation(parser)
    add_look(parser, "read")


def run(options: Namespace) -> None:
    """Raises PulsarException if the broker refuses, ValueError for impossible options."""
    with connect(options) as client, counting(look_of(options, client), "read") as screen:
        receive = _receiving(client, options)
        pace = Pace(options.rate)
        while not options.num_messages or screen.count < options.num_messages:
            pace.wait()
            screen.show(Shown.of(receive()))


def _receiving(client: Client, options: Namespace) -> Callable[[], Message]:
    settings = {"isolation_level": isolation_of(options), **settings_of(options)}
    if is_scalable(options.topic):
        return read(client, options, settings).receive
    reader = client.create_reader(
        options.topic,
        options.start_message_id,
        start_message_id_inclusive=options.start_message_id_inclusive,
        is_read_compacted=options.readCompacted,
        **settings,
    )
    return reader.read_next
