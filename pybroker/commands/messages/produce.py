"""`pybroker produce`: sends messages from arguments, files or lines of stdin."""

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from pybroker.client import CompressionType, MessageId, Producer, Result, Transaction
from pybroker.commands.messages.schemas import Component, KeyValue, component
from pybroker.commands.messages.service import connect
from pybroker.commands.messages.transactions import Transactions, add_transactions
from pybroker.commands.messages.values import KeyUri, Pace, add_rate, positive, properties

Message = tuple[bytes, dict[str, Any]]  # the content, and further arguments of `send`
_CODECS: Final = {codec.name.lower(): codec for codec in CompressionType}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("-m", "--messages", action="append", default=[], metavar="TEXT",
        help="messages, separated by the separator; may be repeated")  # fmt: skip
    add(
        "-f",
        "--files",
        action="append",
        default=[],
        metavar="FILE,…",
        help="send each file as one message",
    )
    add(
        "--stdin",
        action="store_true",
        help="send each line of stdin as a message (pybroker extension)",
    )
    add("-n", "--num-produce", type=positive, default=1, metavar="N", help="repeat N times")
    add("-s", "--separator", default=",", metavar="TEXT",
        help="separator in --messages (default: a comma; '': do not split)")  # fmt: skip
    add_rate(parser)
    add("-k", "--key", help="key of each message")
    add(
        "-p",
        "--properties",
        action="append",
        default=[],
        metavar="K=V,…",
        help="properties of each message",
    )
    add("-db", "--disable-batching", action="store_true", help="send each message in its own entry")
    add(
        "-c",
        "--chunking",
        action="store_true",
        help="split messages too large for one entry into chunks",
    )
    add(
        "-dr",
        "--disable-replication",
        action="store_true",
        help="do not replicate the messages to other clusters",
    )
    add("--compression", choices=_CODECS, default="none",
        help="compress batches with this codec (pybroker extension)")  # fmt: skip
    add("-vs", "--value-schema", default="bytes", metavar="SCHEMA",
        help="bytes, string, avro:DEFINITION or json:DEFINITION")  # fmt: skip
    add("-kvet", "--key-value-encoding-type", choices=("separated", "inline"),
        help="use a key-value schema, with this encoding")  # fmt: skip
    add("-ks", "--key-schema", default="string", metavar="SCHEMA", help="schema of the key")
    add("-kvk", "--key-value-key", metavar="TEXT", help="key of the key-value pair")
    add(
        "-kvkf",
        "--key-value-key-file",
        metavar="FILE",
        help="file with the key of the key-value pair",
    )
    add("-ekn", "--encryption-key-name", metavar="NAME", help="encrypt with the key of this name")
    add("-ekv", "--encryption-key-value", metavar="URI",
        help="the public key to encrypt with: file:///… or data:…;base64,…")  # fmt: skip
    add_transactions(parser, "all messages")


def run(options: Namespace) -> None:
    """Raises PulsarException if the broker refuses, ValueError for messages that do not fit their
    schema, OSError if a file cannot be read.
    """
    made = _messages(options)
    settings = _settings(options)
    receipts = _Receipts()
    try:
        with (
            connect(options) as client,
            client.create_producer(options.topic, **settings) as producer,
        ):
            _produce(Transactions(client, options), producer, made, Pace(options.rate), receipts)
    finally:
        print(f"{receipts.produced} messages successfully produced", file=sys.stderr)


def _produce(
    transactions: Transactions,
    producer: Producer,
    messages: Iterable[Message],
    pace: Pace,
    receipts: "_Receipts",
) -> None:
    for group in transactions.groups(messages):
        with transactions.begin() as txn:
            _send(producer, group, pace, receipts, txn)
        receipts.ended(committed=transactions.wanted)


def _send(
    producer: Producer,
    messages: Iterable[Message],
    pace: Pace,
    receipts: "_Receipts",
    txn: Transaction | None,
) -> None:
    try:
        for content, details in messages:
            pace.wait()
            if receipts.failure is not None:
                break
            producer.send_async(content, receipts.of(txn), txn=txn, **details)
    finally:
        producer.flush()
    if receipts.failure is not None:
        raise receipts.failure


class _Receipts:
    """Counts stored messages; those of a transaction when it has committed."""

    def __init__(self) -> None:
        self.produced = 0
        self.failure: Exception | None = None
        self._in_transaction = 0

    def of(self, txn: Transaction | None) -> Callable[[Any, MessageId | None], None]:
        return self._plain if txn is None else self._transactional

    def _plain(self, result: Any, _: MessageId | None) -> None:
        if result is Result.Ok:
            self.produced += 1
        else:
            self.failure = self.failure or result

    def _transactional(self, result: Any, _: MessageId | None) -> None:
        if result is Result.Ok:
            self._in_transaction += 1
        else:
            self.failure = self.failure or result

    def ended(self, committed: bool) -> None:
        if committed:
            self.produced += self._in_transaction
        self._in_transaction = 0


# -- messages


def _messages(options: Namespace) -> Iterator[Message]:
    """The messages. Raises ValueError or OSError before anything is sent, except for input on
    stdin.
    """
    made = _made(options)
    if options.stdin:
        if options.messages or options.files or options.num_produce != 1:
            raise ValueError("--stdin cannot be combined with --messages, --files or --num-produce")
        return (made(line.removesuffix(b"\n")) for line in sys.stdin.buffer)
    typed = [
        os.fsencode(part) for text in options.messages for part in _split(text, options.separator)
    ]
    paths = [path for text in options.files for path in text.split(",") if path]
    bodies = typed + [Path(path).read_bytes() for path in paths]
    if not bodies:
        raise ValueError("supply message content with --messages, --files or --stdin")
    messages = [made(body) for body in bodies]
    return (message for _ in range(options.num_produce) for message in messages)


def _split(text: str, separator: str) -> list[str]:
    """Splits a text. Empty text after the last separator is not a message."""
    parts = text.split(separator) if separator else [text]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _made(options: Namespace) -> Callable[[bytes], Message]:
    """A message from a text. Raises ValueError, OSError."""
    details: dict[str, Any] = {"properties": properties(options.properties)}
    if options.disable_replication:
        details["disable_replication"] = True
    schema = _schema(options)
    if isinstance(schema, Component):
        if options.key:
            details["partition_key"] = options.key
        return lambda body: (schema.encode(body), details)
    key = _key(options)

    def with_key(body: bytes) -> Message:
        content, more = schema.message(key, body)
        return content, details | more

    return with_key


def _key(options: Namespace) -> bytes:
    """The key. Raises ValueError, OSError."""
    if options.key_value_key_file:
        return Path(options.key_value_key_file).read_bytes()
    key: str | None = options.key_value_key or options.key
    if key is None:
        raise ValueError("a key-value schema needs --key-value-key or --key-value-key-file")
    return os.fsencode(key)


def _schema(options: Namespace) -> Component | KeyValue:
    """The schema. Raises ValueError."""
    value = component(options.value_schema)
    if options.key_value_encoding_type is None:
        return value
    separated = options.key_value_encoding_type == "separated"
    return KeyValue(component(options.key_schema), value, separated)


def _settings(options: Namespace) -> dict[str, Any]:
    """The producer's settings. Raises ValueError."""
    settings: dict[str, Any] = {
        "batching_enabled": not (
            options.disable_batching or options.chunking or options.one_entry_each
        ),
        "chunking_enabled": options.chunking,
        "block_if_queue_full": True,
        "compression_type": _CODECS[options.compression],
        "schema": _schema(options).schema,
    }
    if bool(options.encryption_key_name) != bool(options.encryption_key_value):
        raise ValueError("--encryption-key-name and --encryption-key-value must be given together")
    if options.encryption_key_name:
        settings["encryption_key"] = options.encryption_key_name
        settings["crypto_key_reader"] = KeyUri(options.encryption_key_value)
    return settings
