"""`pybroker peek`: shows messages without consuming them, and does not wait for more.

With a subscription it shows the unacknowledged messages, through the admin REST API; otherwise the
topic's stored messages, through a reader.
"""

import argparse
import base64
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final

from pybroker.client import MessageId
from pybroker.commands.admin.access import rest
from pybroker.commands.admin.command import segment, topic_parts
from pybroker.commands.admin.rest import Answer, Rest, RestError
from pybroker.commands.client_conf import client_conf
from pybroker.commands.entry_answers import HEADER, id_in_batch, is_end_of_backlog, singles
from pybroker.commands.messages.receiving import Screen, add_look, counting, look_of, settings_of
from pybroker.commands.messages.service import connect, shown_credentials
from pybroker.commands.messages.shown import Shown
from pybroker.commands.messages.values import message_id

_ADMIN_URL: Final = "http://localhost:8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add(
        "-s",
        "--subscription-name",
        metavar="NAME",
        help="show its backlog; without it, the stored messages",
    )
    add("-m", "--start-message-id", type=message_id, default=MessageId.earliest, metavar="ID",
        help="without a subscription: earliest (default) or ledgerId:entryId")  # fmt: skip
    add("--admin-url", metavar="URL",
        help="with a subscription: URL of the broker's HTTP port (default PULSAR_ADMIN_URL, else "
        f"{_ADMIN_URL})")  # fmt: skip
    add_look(parser, "show")


def run(options: Namespace) -> None:
    """Raises PulsarException or RestError if the broker refuses, ValueError for options that
    exclude each other, OSError if a file cannot be read.
    """
    if options.subscription_name:
        _waiting(options)
    else:
        _stored(options)


def _stored(options: Namespace) -> None:
    with connect(options) as client, counting(look_of(options, client), "peeked") as screen:
        reader = client.create_reader(
            options.topic,
            options.start_message_id,
            start_message_id_inclusive=True,
            **settings_of(options),
        )
        while _wanted(options, screen) and reader.has_message_available():
            screen.show(Shown.of(reader.read_next()))


def _wanted(options: Namespace, screen: Screen) -> bool:
    return not options.num_messages or screen.count < options.num_messages


# -- of a subscription


def _waiting(options: Namespace) -> None:
    domain, topic = topic_parts(options.topic)
    path = f"{domain}/{topic}/subscription/{segment(options.subscription_name)}/position"
    with counting(look_of(options, None), "peeked") as screen:
        for shown in _positions(_rest(options), path):
            screen.show(shown)
            if not _wanted(options, screen):
                return


def _rest(options: Namespace) -> Rest:
    """The connection to the admin REST API. Raises ValueError, OSError."""
    said = vars(options)
    conf = client_conf(said.get("client_conf"))
    url = options.admin_url or os.environ.get("PULSAR_ADMIN_URL") or conf.get("webServiceUrl")
    shown = shown_credentials(said, conf)
    return rest(url or _ADMIN_URL, shown, conf, said.get("tlsTrustCertsFilePath", ""))


def _positions(asked: Rest, path: str) -> Iterator[Shown]:
    """The messages of the backlog, entry by entry, until its end. Raises RestError."""
    for number in count(1):
        try:
            answer = asked.raw("GET", f"{path}/{number}")
        except RestError as error:
            if is_end_of_backlog(error):
                return
            raise
        yield from messages_of(answer)


def messages_of(answer: Answer) -> Iterator[Shown]:
    """The messages of an entry, by its headers; several for a batch that can be split."""
    said = {name.lower(): text for name, text in answer.described(HEADER).items()}
    found = singles(said, answer.data)
    if found is None:
        properties = json.loads(said.get("property", "{}"))
        yield _shown(said, answer.data, said.get("partition-key"), properties, said["message-id"])
        return
    for index, (single, data) in enumerate(found):
        yield _shown(
            said | {"event-time": str(single.event_time)},
            None if single.null_value else data,
            single.partition_key if single.HasField("partition_key") else None,
            {pair.key: pair.value for pair in single.properties},
            id_in_batch(said["message-id"], index),
        )


def _shown(
    said: Mapping[str, str],
    data: bytes | None,
    key: str | None,
    properties: Mapping[str, str],
    place: str,
) -> Shown:
    version = said.get("base64-schema-version-b64encoded", "")
    return Shown(
        data=None if said.get("null-value") == "true" else data,
        key=key,
        properties=properties,
        publish_time_ms=_ms(said.get("publish-time")),
        event_time_ms=_ms(said.get("event-time")),
        message_id=place,
        producer_name=said.get("producer-name", ""),
        replicated_from=said.get("replicated-from", ""),
        sequence_id=int(said.get("sequence-id", 0)),
        schema_version=base64.b64decode(version),
    )


def _ms(time: Any) -> int:
    """Milliseconds from a header with a number or an ISO 8601 time; 0 if there is none."""
    if not time:
        return 0
    try:
        return int(time) if time.isdigit() else int(datetime.fromisoformat(time).timestamp() * 1000)
    except ValueError:
        return 0
