"""The demo's three scenes. Each fills a topic, runs drivers that are killed, and counts the
outcome.
"""

import csv
import json
from pathlib import Path
from typing import Final

from pybroker.base.errors import MetadataError
from pybroker.client import Client, Outgoing
from pybroker.demo import audit, flights, payments
from pybroker.demo.driver import Settings
from pybroker.demo.java_job import PLANES, PLANES_COPY, JavaJobSettings
from pybroker.demo.lives import LIFE_TIMEOUT_S, Life, Stage, live
from pybroker.demo.observer import Observer, read_input
from pybroker.demo.processes import Driver
from pybroker.demo.report import Verdict, headline, say
from pybroker.demo.topics import create_partitioned, fill, keep_everything, read_all
from pybroker.spark.jars import official_client_jars

_LEDGER_LIVES: Final = (
    Life("driver@plain-sent:2"),
    Life("broker@marked:2,driver@acknowledged:3"),
    Life("hold@acknowledged:1,broker@acknowledged:2,driver@marked:3", with_rival=True),
    Life("driver@published:2", loses_checkpoint=True),
    Life("broker@published:2,driver@committed:3"),
    Life("broker@marked:2"),
)
_FLIGHT_LIVES: Final = (
    Life("broker@acknowledged:2,driver@published:3"),
    Life("broker@marked:2"),
)
_TRANSFERS_PER_ENTRY: Final = 100
_FLIGHTS_PER_ENTRY: Final = 1000
_LEDGER_BATCHES: Final = 16
_FLIGHT_BATCHES: Final = 8


# --- payments -----------------------------------------------------------------------------------


def play_ledger(stage: Stage, count: int) -> None:
    headline(f"Payments ledger: {count:,} transfers, drivers and broker killed -9 around them")
    broker, verdict = stage.broker, stage.verdict
    transfers = list(payments.make_transfers(count, seed=7))
    _fill_transfers(stage, transfers)
    observer = Observer(broker.service_url, read_input(broker.service_url))
    observer.start()
    settings = Settings(
        "payments",
        broker.service_url,
        str(stage.directory),
        str(stage.directory / "ledger-checkpoint"),
        entries_per_trigger=max(3, count // _TRANSFERS_PER_ENTRY // _LEDGER_BATCHES),
        with_plain_sink=True,
    )
    live(stage, settings, _LEDGER_LIVES)
    observer.finish(timeout_s=120)
    _claim_observed(verdict, observer, count)
    _claim_rival_fenced(stage, observer)
    audit.audit_ledger(verdict, broker.service_url, transfers)
    audit.audit_aborted(verdict, broker.service_url, broker.admin_url, observer.markers)
    audit.audit_plain_sink(verdict, broker.service_url, transfers)


def _fill_transfers(stage: Stage, transfers: list[payments.Transfer]) -> None:
    create_partitioned(stage.broker.admin_url, payments.TRANSFERS, payments.PARTITIONS)
    with Client(stage.broker.service_url) as client:
        keep_everything(client, payments.TOPICS)
        messages = (transfer.to_message() for transfer in transfers)
        fill(client, payments.TRANSFERS, messages, _TRANSFERS_PER_ENTRY)


def _claim_observed(verdict: Verdict, observer: Observer, count: int) -> None:
    for violation in observer.violations[:5]:
        say(f"observer: {violation}")
    verdict.claim(
        not observer.violations and observer.transfers_seen == count,
        f"live observer: {len(observer.markers)} markers, contiguous, over "
        f"{observer.transfers_seen:,} transfers; debits, credits and rejects agreed with each "
        f"marker's ends ({len(observer.violations)} violations, no partial batch)",
    )


def _claim_rival_fenced(stage: Stage, observer: Observer) -> None:
    query_id = json.loads((stage.rival_checkpoint / "metadata").read_text())["id"]
    written = sum(marker.query_id == query_id for marker in observer.markers)
    fenced = "Fenced" in stage.rival_log.read_text(errors="replace")
    stage.verdict.claim(
        fenced and written == 0,
        f"second driver on the same subscription: {'fenced' if fenced else 'NOT fenced'}, "
        f"{written} batches written",
        stage.rival_log,
    )


# --- flights ------------------------------------------------------------------------------------


def play_flights(stage: Stage, limit: int | None) -> None:
    rows = list(flights.read_flights())[:limit]
    headline(f"Flights: {len(rows):,} real flights, executors publishing in one transaction")
    broker = stage.broker
    create_partitioned(broker.admin_url, flights.FLIGHTS, flights.PARTITIONS)
    with Client(broker.service_url) as client:
        keep_everything(client, flights.TOPICS)
        messages = (row.to_message() for row in rows)
        fill(client, flights.FLIGHTS, messages, _FLIGHTS_PER_ENTRY)
    settings = Settings(
        "flights",
        broker.service_url,
        str(stage.directory),
        str(stage.directory / "flights-checkpoint"),
        entries_per_trigger=max(2, len(rows) // _FLIGHTS_PER_ENTRY // _FLIGHT_BATCHES),
        mode="executor",
    )
    live(stage, settings, _FLIGHT_LIVES)
    audit.audit_flights(stage.verdict, broker.service_url, flights.expected_figures(rows))


# --- the official Java client ---------------------------------------------------------------------


def play_java_client(stage: Stage, jars_directory: Path) -> None:
    headline("The official Java client's transactions through PySpark's gateway")
    try:
        jars = official_client_jars(jars_directory)
    except MetadataError as error:
        say(f"skipped: {error}")
        return
    service_url = stage.broker.service_url
    tails = _tail_numbers()
    with Client(service_url) as client:
        keep_everything(client, (PLANES, PLANES_COPY))
        fill(client, PLANES, (Outgoing(tail.encode()) for tail in tails), per_entry=100)
    settings = JavaJobSettings(
        service_url,
        str(stage.directory / "java-checkpoint"),
        ",".join(map(str, jars)),
        entries_per_trigger=12,
    )
    log = stage.directory / "java-job.log"
    driver = Driver(settings.to_json(), log, module="pybroker.demo.java_job")
    exit_code = driver.wait(LIFE_TIMEOUT_S)
    copied = [message.data().decode() for message in read_all(service_url, [PLANES_COPY])]
    stage.verdict.claim(
        exit_code == 0 and sorted(copied) == sorted(tails),
        f"official Java client: {len(copied):,} messages for {len(tails):,} planes after each "
        f"batch had been aborted once; its job ended with exit code {exit_code}",
        log,
    )


def _tail_numbers() -> list[str]:
    with (flights.data_directory() / "planes.csv").open(newline="") as rows:
        return [row["tailnum"] for row in csv.DictReader(rows)]
