"""A broker with content for each page of the console, and a headless Chromium."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import pybroker.testing
from pybroker.client import Client, Consumer, Producer, Transaction
from pybroker.testing import RunningBroker

EVIL: Final = "<script>alert(1)</script>"
QUERY: Final = "aa8e1c1e-6c5d-4b5e-9c61-1d5a4b0e7f10"
PAYMENTS: Final = "/console/topics/persistent/public/default/payments"
PATHS: Final = {
    "overview": "/console",
    "topics": "/console/topics",
    "topic": PAYMENTS,
    "messages": f"{PAYMENTS}/messages",
    "policies": f"{PAYMENTS}/policies",
    "storage": f"{PAYMENTS}/storage",
    "subscription": f"{PAYMENTS}/subscriptions/ledger",
    "schemas": "/console/topics/persistent/shop/orders/placed/schemas",
    "partitions": "/console/topics/persistent/shop/orders/clicks",
    "transactions": "/console/transactions",
    "transaction": "/console/transactions/0/0",
    "over": "/console/transactions/1/0",
    "ended": "/console/transactions/ended",
    "connections": "/console/connections",
    "tenants": "/console/tenants",
    "tenant": "/console/tenants/shop",
    "namespace": "/console/tenants/shop/orders",
    "pipelines": "/console/pipelines",
    "faults": "/console/faults",
    "rule": "/console/faults?point=transaction.marker.before",
    "configuration": "/console/configuration",
    "logs": "/console/logs",
}
_SCHEMA: Final = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}


@contextmanager
def shown_broker(note: str = EVIL, **settings: Any) -> Iterator[RunningBroker]:
    """`note` appears in a property and in a subscription's name."""
    with pybroker.testing.broker(http=True, faults=True, **settings) as broker:
        broker.faults.inject("transaction.marker.before", "hold", topic="refunds-*", times=3)
        broker.faults.inject("deliver.before", "drop", subscription=f"audit {note}", every=10)
        client = Client(broker.service_url, enable_transaction=True)
        with httpx.Client(base_url=broker.admin_url) as admin:
            _settle(admin)
        broker.faults.record()
        _fill(client, note)
        yield broker
        client.close()


def _settle(admin: httpx.Client) -> None:
    admin.put("/admin/v2/tenants/shop", json={"adminRoles": ["shop-admin"]})
    admin.put("/admin/v2/namespaces/shop/orders", json={})
    admin.put("/admin/v2/persistent/shop/orders/clicks/partitions", content="4")
    admin.post("/admin/v2/namespaces/shop/orders/messageTTL", json=86_400)
    schema = {"type": "JSON", "schema": json.dumps(_SCHEMA), "properties": {}}
    admin.post("/admin/v2/schemas/shop/orders/placed/schema", json=schema)
    placed = {"messages": [{"payload": '{"id": 1, "item": "lamp"}'}]}
    admin.put("/admin/v2/persistent/shop/orders/placed")
    admin.post("/topics/persistent/shop/orders/placed", json=placed)


def _fill(client: Client, note: str) -> None:
    ledger = client.subscribe("payments", "ledger")
    client.subscribe("payments", f"report {note}").close()
    producer = client.create_producer("payments", properties={"app": "shop"})
    for number in range(60):
        text = json.dumps({"payment": number, "amount": number * 7 % 97})
        producer.send(text.encode(), {"source": "till", "note": note}, f"customer-{number % 5}")
    for _ in range(40):
        ledger.acknowledge(ledger.receive(5000))
    _begin_and_end(client, ledger, producer)
    control = f"persistent://public/default/spark-query-{QUERY}"
    client.subscribe(control, f"query-{QUERY}").close()
    ends = {"ledger": {"persistent://public/default/payments": "1:39"}}
    marker = {"query_id": QUERY, "batch_id": 41, "ends": ends}
    client.create_producer(control).send(json.dumps(marker).encode())


def _begin_and_end(client: Client, ledger: Consumer, payments: Producer) -> None:
    """Transaction (0,0) stays open and blocks later messages; of coordinators 1 to 3, one
    transaction each is committed, aborted and open.
    """
    invoices = client.create_producer("invoices")
    waiting, committed, aborted, later = (_transaction(client, each) for each in range(4))
    for number in range(3):
        payments.send(b"not yet decided", txn=waiting)
        payments.send(b"waits %d" % number)
    ledger.acknowledge(ledger.receive(5000), txn=waiting)
    payments.send(b"neither", txn=later)
    payments.send(b"waits, too")
    invoices.send(b"decided", txn=committed)
    ledger.acknowledge(ledger.receive(5000), txn=committed)
    committed.commit()
    invoices.send(b"given up", txn=aborted)
    aborted.abort()


def _transaction(client: Client, coordinator: int) -> Transaction:
    while (transaction := client.new_transaction(600_000)).txn_id[0] != coordinator:
        transaction.abort()
    return transaction


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Debian's Chromium with Debian's driver. It makes no network requests of its own."""
    options = webdriver.ChromeOptions()
    for switch in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
    ):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: webdriver.Chrome, url: str, width: int, height: int, dark: bool = False) -> None:
    """Show a page at the size of a phone or a screen, in one of the two colour schemes."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    colour(driver, dark)
    driver.get(url)


def colour(driver: webdriver.Chrome, dark: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
