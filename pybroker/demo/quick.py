"""`pybroker demo`: payments through transactions, exactly once, in about ten seconds.

It starts a real broker in a temporary directory and sends orders. A payment service in its own
process turns each order into a payment and two ledger entries. The service is killed (SIGKILL)
twice: once from outside in the middle of its work, once by itself between sending and
acknowledging. At the end, new readers count the contents of the topics. `make demo` is the larger
demo, with Spark.
"""

import argparse
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from pybroker.base.arguments import Parser
from pybroker.base.colours import BOLD, GREEN, RED, coloured
from pybroker.client import Client, PulsarException, encode_batch
from pybroker.demo.payment_service import LEDGER, ORDERS, PAYMENTS
from pybroker.demo.progress import ProgressBar
from pybroker.demo.report import Verdict, elapsed_s, print_end, say
from pybroker.demo.topics import Tail, keep_everything, read_all
from pybroker.testing.broker_process import BrokerProcess

USUAL_PORTS: Final = {"--port": 6650, "--http-port": 8080}
_BUYERS: Final = 50
_LIMIT_S: Final = 120.0
_BROKER_LOG: Final = "broker.log"
_SERVICE_LOG: Final = "service.log"
_ORDERS_PER_ENTRY: Final = 100
_DIES_AT_TRANSACTION: Final = 3


class DemoFailed(Exception):
    """The demo could not continue, because of the payment service or what the message says."""


def main(words: Sequence[str]) -> int:
    """Runs the demo and returns the exit code."""
    options = demo_parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM must stop the broker too
    return run(options)


def demo_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker demo",
        description="Pay orders in transactions while processes are killed, then count the result.",
        allow_abbrev=False,
    )
    parser.add_argument("--orders", type=_count, default=3000, metavar="N", help="default: 3000")
    parser.add_argument(
        "--exit", action="store_true", help="end after the verdict instead of keeping the broker up"
    )
    parser.add_argument(
        "--directory", type=Path, help="keep logs and data here; default: a temporary directory"
    )
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 300 <= int(text[:9]) <= 1_000_000):
        raise argparse.ArgumentTypeError("the number of orders is 300 to 1000000")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """The exit code: 0 if everything happened exactly once, 1 if not, 2 if it could not run, 130 if
    it was interrupted before the verdict.
    """
    directory = options.directory or Path(tempfile.mkdtemp(prefix="pybroker-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    verdict = Verdict(directory / _SERVICE_LOG)
    try:
        with _broker(directory) as broker:
            _play(broker.service_url, directory, options.orders, verdict)
            _print(verdict)
            if not options.exit and sys.stdout.isatty():
                _keep_open(broker)
    except KeyboardInterrupt:
        pass
    except (DemoFailed, PulsarException, RuntimeError, OSError) as error:
        print(f"pybroker demo: {error}; logs are in {directory}", file=sys.stderr)
        failed = _SERVICE_LOG if isinstance(error, DemoFailed) else _BROKER_LOG
        if (directory / failed).exists():
            print_end(directory / failed, sys.stderr)
        return 2
    if options.directory is None and (verdict.holds or not verdict.claims):
        shutil.rmtree(directory, ignore_errors=True)
    if not verdict.claims:
        print("pybroker demo: interrupted; all processes were stopped", file=sys.stderr)
        return 130
    return 0 if verdict.holds else 1


@contextmanager
def _broker(directory: Path) -> Iterator[BrokerProcess]:
    if (directory / "data").exists():
        raise DemoFailed(f"{directory} holds an earlier demo's data: choose another --directory")
    arguments = [
        word
        for option, port in USUAL_PORTS.items()
        if _is_free(port)
        for word in (option, f"{port}")
    ]
    with (
        (directory / _BROKER_LOG).open("ab") as log,
        BrokerProcess(directory / "data", arguments, log) as broker,
    ):
        say(f"broker at {broker.service_url}, its data in {directory}")
        yield broker


def _is_free(port: int) -> bool:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def make_orders(count: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "id": number,
            "buyer": f"buyer-{chance.randrange(_BUYERS):02}",
            "cents": chance.randrange(100, 100_000),
        }
        for number in range(count)
    ]


def _play(service_url: str, directory: Path, count: int, verdict: Verdict) -> None:
    orders = make_orders(count)
    with Client(service_url) as client:
        keep_everything(client, (PAYMENTS, LEDGER))
        _send(client, orders)
        say(f"sent {count:,} orders; the payment service pays up to 20 in a transaction")
    watch = _Watch(service_url, count)
    with (directory / _SERVICE_LOG).open("ab") as log:
        first = _Service(service_url, log)
        try:
            watch.wait_for(count // 3, first)
        finally:
            first.kill()
        watch.say("killed the payment service (-9) in the middle of its work; it starts again")
        second = _Service(service_url, log, _DIES_AT_TRANSACTION)
        unfinished = second.last_words()
        watch.say(f"it killed itself: {len(unfinished)} payments sent, no order acknowledged")
        third = _Service(service_url, log)
        try:
            watch.wait_for(count, third)
        finally:
            third.kill()
    watch.close()
    audit(verdict, orders, _read(service_url, PAYMENTS), _read(service_url, LEDGER), unfinished)


def _send(client: Client, orders: Sequence[dict[str, Any]]) -> None:
    with client.create_producer(ORDERS) as producer:
        for start in range(0, len(orders), _ORDERS_PER_ENTRY):
            some = orders[start : start + _ORDERS_PER_ENTRY]
            producer.send_batch(encode_batch([json.dumps(order).encode() for order in some]))


def _read(service_url: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.data()) for message in read_all(service_url, [topic])]


class _Service:
    """A payment service in its own process."""

    def __init__(self, service_url: str, log: Any, dies_at: int | None = None) -> None:
        module = [sys.executable, "-m", "pybroker.demo.payment_service", service_url]
        self._process = subprocess.Popen(
            [*module, *([] if dies_at is None else [str(dies_at)])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def last_words(self) -> list[int]:
        """The ids of the orders that were unfinished when the process died."""
        limit = threading.Timer(_LIMIT_S, self._process.kill)
        limit.start()
        said, _ = self._process.communicate()
        limit.cancel()
        if self._process.returncode != -signal.SIGKILL or not said:
            raise DemoFailed("the payment service did not die where it should")
        ids: list[int] = json.loads(said)
        return ids


class _Watch:
    """Follows the payments that readers see, and shows their number."""

    def __init__(self, service_url: str, count: int) -> None:
        self._tail = Tail(service_url, PAYMENTS)
        self._bar = ProgressBar("payments committed", count)
        self._seen = 0

    def wait_for(self, count: int, service: _Service) -> None:
        give_up_at = time.monotonic() + _LIMIT_S
        while self._seen < count:
            self._seen += len(self._tail.read(timeout_ms=200))
            self._bar.show(self._seen)
            if not service.is_running:
                raise DemoFailed("the payment service exited unexpectedly")
            if time.monotonic() > give_up_at:
                raise DemoFailed(f"{self._seen:,} of {count:,} payments after {_LIMIT_S:.0f} s")

    def say(self, text: str) -> None:
        self._bar.interrupt()
        say(text)

    def close(self) -> None:
        self._bar.interrupt()
        self._tail.close()


def audit(
    verdict: Verdict,
    orders: Sequence[dict[str, Any]],
    payments: Sequence[dict[str, Any]],
    ledger: Sequence[dict[str, Any]],
    unfinished: Sequence[int],
) -> None:
    """Compares the counts of new readers with the orders that were sent."""
    paid, booked = (Counter(each["id"] for each in found) for found in (payments, ledger))
    _claim_count(verdict, "payments", paid, len(orders), 1)
    _claim_count(verdict, "ledger entries", booked, len(orders), 2)
    right = {order["id"]: order["cents"] for order in orders}
    total = sum(entry["cents"] for entry in ledger)
    moved = sum(payment["cents"] for payment in payments)
    verdict.claim(
        total == 0 and all(right.get(each["id"]) == each["cents"] for each in payments),
        f"the ledger sums to {total}; {moved / 100:,.2f} were paid",
    )
    verdict.claim(
        bool(unfinished) and all(paid[number] == 1 for number in unfinished),
        f"the {len(unfinished)} orders of the unfinished transaction were paid once: no reader saw "
        "the payments that were sent before the process died",
    )


def _claim_count(verdict: Verdict, name: str, found: Counter[int], orders: int, each: int) -> None:
    wanted = range(orders)
    missing = sum(max(0, each - found[number]) for number in wanted)
    repeated = sum(max(0, count - each) for count in found.values())
    foreign = sum(number not in wanted for number in found)
    verdict.claim(
        not missing and not repeated and not foreign,
        f"{found.total():,} {name} for {orders:,} orders: {missing} missing, {repeated} repeated, "
        f"{foreign} unexpected",
    )


def _print(verdict: Verdict) -> None:
    print()
    for claim in verdict.claims:
        mark = coloured("ok  ", GREEN) if claim.holds else coloured("FAIL", RED)
        print(f"  {mark}  {claim.text}")
    verdict.print_logs()
    words = "EXACTLY ONCE" if verdict.holds else "NOT EXACTLY ONCE"
    shown = coloured(words, f"{BOLD};{GREEN if verdict.holds else RED}")
    print(f"\n{shown} ({elapsed_s():.0f} s)", flush=True)


def _keep_open(broker: BrokerProcess) -> None:
    print(
        f"\nLook at the topics: {broker.admin_url}/console\n"
        f"The broker serves {broker.service_url} until you press Ctrl-C.",
        flush=True,
    )
    threading.Event().wait()
