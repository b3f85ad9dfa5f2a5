"""The display options of consume, read and peek, and the count of shown messages."""

import argparse
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from pybroker.client import Client, ConsumerCryptoFailureAction, IsolationLevel
from pybroker.commands.messages.schemas import Decoder
from pybroker.commands.messages.shown import Look, Shown
from pybroker.commands.messages.values import KeyUri, add_rate, natural
from pybroker.commands.terminal import for_reader


def add_look(parser: argparse.ArgumentParser, verb: str) -> None:
    add = parser.add_argument
    add("-n", "--num-messages", type=natural, default=1, metavar="N",
        help=f"how many to {verb} (default 1), 0 for no limit")  # fmt: skip
    add_rate(parser)
    add("--hex", action="store_true", help="show contents in hexadecimal")
    add(
        "--hide-content",
        action="store_true",
        help="print no contents, only a line every 1000 messages",
    )
    add("-mp", "--print-metadata", action="store_true", help="also show the metadata")
    add("-st", "--schema-type", choices=("bytes", "auto_consume"), default="bytes",
        help="auto_consume: records as JSON, by the topic's schema")  # fmt: skip
    add("-pm", "--pool-messages", metavar="BOOLEAN", help="no effect: there is no pool")
    add("-q", "--queue-size", type=natural, default=0, metavar="N",
        help="how many messages the broker may send ahead")  # fmt: skip
    add("-mc", "--max_chunked_msg", type=natural, default=0, metavar="N",
        help="how many chunked messages may be incomplete at once")  # fmt: skip
    add("-ac", "--auto_ack_chunk_q_full", action="store_true",
        help="no effect: dropped chunks stay unacknowledged")  # fmt: skip
    add("-ekv", "--encryption-key-value", metavar="URI",
        help="the private key to decrypt with: file:///… or data:…;base64,…")  # fmt: skip
    add("-ca", "--crypto-failure-action", choices=[a.name for a in ConsumerCryptoFailureAction],
        default="FAIL", help="what to do with messages that cannot be decrypted")  # fmt: skip


def add_isolation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--isolation", choices=[level.value for level in IsolationLevel],
        help="read_uncommitted: include messages of open transactions")  # fmt: skip


def isolation_of(options: Namespace) -> IsolationLevel | None:
    return None if options.isolation is None else IsolationLevel(options.isolation)


def settings_of(options: Namespace) -> dict[str, Any]:
    """The settings of consumers and readers. Raises ValueError."""
    settings: dict[str, Any] = {
        "crypto_failure_action": ConsumerCryptoFailureAction[options.crypto_failure_action]
    }
    if options.queue_size:
        settings["receiver_queue_size"] = options.queue_size
    if options.max_chunked_msg:
        settings["max_pending_chunked_message"] = options.max_chunked_msg
    if options.encryption_key_value:
        settings["crypto_key_reader"] = KeyUri(options.encryption_key_value)
    return settings


class Screen:
    """Prints messages and counts them."""

    def __init__(self, look: Look) -> None:
        self.count = 0
        self._look = look
        if isinstance(sys.stdout, TextIOWrapper):  # its encoding may lack characters of a message
            sys.stdout.reconfigure(errors="backslashreplace")

    def show(self, shown: Shown) -> None:
        self.count += 1
        for line in self._look.lines(shown, self.count):
            print(for_reader(sys.stdout, line))
        sys.stdout.flush()


def look_of(options: Namespace, client: Client | None) -> Look:
    decodes = options.schema_type == "auto_consume" and client is not None
    return Look(
        hex=options.hex,
        hidden=options.hide_content,
        metadata=options.print_metadata,
        decoder=Decoder(client) if decodes and client is not None else None,
    )


@contextmanager
def counting(look: Look, done: str) -> Iterator[Screen]:
    """At the end, even after an error, prints the count. `done` is a participle."""
    screen = Screen(look)
    try:
        yield screen
    finally:
        print(f"{screen.count} messages successfully {done}", file=sys.stderr)
