"""Parses the values of options."""

import argparse
import base64
import binascii
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from pybroker.client import CryptoKeyReader, MessageId

T = TypeVar("T")
_LONG: Final = range(-1, 2**63)


def positive(text: str) -> int:
    number = natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("0 is not a positive number")
    return number


def natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is neither 0 nor a positive number")
    return number


def add_rate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-r",
        "--rate",
        type=_rate,
        default=0.0,
        metavar="N",
        help="messages per second, 0 for no limit",
    )


def _rate(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(
            f"{text} is not a rate in messages per second (0 for no limit)"
        )
    return number


def properties(texts: Iterable[str]) -> dict[str, str]:
    """`k1=v1,k2=v2`, repeatable. Raises ValueError."""
    pairs = [part.partition("=") for text in texts for part in text.split(",") if part]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise ValueError(f"--properties: {key or '='!r} is not key=value")
    return {key: value for key, _, value in pairs}


def message_id(text: str) -> MessageId:
    """latest, earliest, or ledger:entry."""
    if text in ("latest", "earliest"):
        return MessageId.latest if text == "latest" else MessageId.earliest
    ledger, colon, entry = text.partition(":")
    try:
        numbers = int(ledger), int(entry)
    except ValueError:
        numbers = (-2, -2)
    if not colon or not all(number in _LONG for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not latest, earliest or ledgerId:entryId")
    return MessageId(-1, *numbers)


class KeyUri(CryptoKeyReader):
    """One RSA key from a URI: file:///…, data:…;base64,…, or a path."""

    def __init__(self, uri: str) -> None:
        """Raises ValueError if the key cannot be read."""
        self._pem = content_of(uri)

    def public_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        return self._pem

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        return self._pem


def content_of(uri: str) -> bytes:
    """The bytes that a URI names. Raises ValueError."""
    try:
        if uri.startswith("data:"):
            kind, _, data = uri.partition(",")
            return base64.b64decode(data) if kind.endswith(";base64") else unquote_to_bytes(data)
        path = uri.removeprefix("file:")
        return Path(path[2:] if path.startswith("///") else path).read_bytes()
    except (OSError, binascii.Error) as error:
        raise ValueError(f"{uri[:80]} cannot be read: {error}") from None


def groups(items: Iterable[T], size: int | None) -> Iterator[Iterator[T]]:
    """Groups of `size` items; None: a single group. A group starts when its first item is
    available.
    """
    waiting = iter(items)
    for first in waiting:
        yield chain([first], waiting if size is None else islice(waiting, size - 1))


class Pace:
    """Limits a rate, per second; 0: no limit."""

    def __init__(self, per_second: float) -> None:
        self._step_s = 1 / per_second if per_second else 0.0
        self._next_s = time.monotonic()

    def wait(self) -> None:
        if not self._step_s:
            return
        now_s = time.monotonic()
        if now_s < self._next_s:
            time.sleep(self._next_s - now_s)
        self._next_s = max(now_s, self._next_s) + self._step_s
