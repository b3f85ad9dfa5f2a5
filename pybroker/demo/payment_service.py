"""The process that `pybroker demo` kills: it turns orders into payments and ledger entries.

One transaction contains a batch's payments, its ledger entries and the acknowledgement of its
orders. `python -m pybroker.demo.payment_service URL [DIES_AT]`: with DIES_AT the process kills
itself in that transaction, after sending everything and before acknowledging anything.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from pybroker.client import Client, Consumer, InitialPosition, Message, Producer, Timeout

ORDERS: Final = "persistent://public/default/orders"
PAYMENTS: Final = "persistent://public/default/payments"
LEDGER: Final = "persistent://public/default/ledger"
SUBSCRIPTION: Final = "payment-service"

_BATCH_ORDERS: Final = 20
_FIRST_TIMEOUT_MS: Final = 60_000
_NEXT_TIMEOUT_MS: Final = 20


def serve(service_url: str, dies_at: int | None) -> None:
    """Runs until it is killed, or until no order has arrived for a minute. Before it kills itself,
    it prints the ids of its unfinished orders.
    """
    client = Client(service_url, enable_transaction=True)
    orders = client.subscribe(ORDERS, SUBSCRIPTION, initial_position=InitialPosition.Earliest)
    payments = client.create_producer(PAYMENTS)
    ledger = client.create_producer(LEDGER)
    transactions = 0
    while batch := _next_orders(orders):
        transactions += 1
        with client.new_transaction(timeout_ms=30_000, abort_on_disconnect=True) as txn:
            for message in batch:
                for producer, value in _outputs(message, payments, ledger):
                    producer.send_async(json.dumps(value).encode(), txn=txn)
            if transactions == dies_at:
                payments.flush()
                ledger.flush()
                _die_with(batch)
            orders.acknowledge(batch, txn=txn)


def _next_orders(orders: Consumer) -> list[Message]:
    """The next orders, at least one; none if no order arrived for a minute."""
    batch: list[Message] = []
    try:
        batch.append(orders.receive(_FIRST_TIMEOUT_MS))
        while len(batch) < _BATCH_ORDERS:
            batch.append(orders.receive(_NEXT_TIMEOUT_MS))
    except Timeout:
        pass
    return batch


def _outputs(
    message: Message, payments: Producer, ledger: Producer
) -> Sequence[tuple[Producer, dict[str, object]]]:
    order = json.loads(message.data())
    number, buyer, cents = order["id"], order["buyer"], order["cents"]
    return (
        (payments, {"id": number, "cents": cents}),
        (ledger, {"id": number, "account": buyer, "cents": -cents}),
        (ledger, {"id": number, "account": "shop", "cents": cents}),
    )


def _die_with(batch: Sequence[Message]) -> None:
    print(json.dumps([json.loads(message.data())["id"] for message in batch]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
