"""The payments ledger: transfers become debits, credits, rejects and balances by the minute.

A transfer moves cents from one account to another. A valid transfer becomes a debit and a credit
with its id, an invalid one a reject. So each id must be once in `debits` and once in `credits`, or
once in `rejects`, and the sum of all amounts must be 0.
"""

import json
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pybroker.client import Outgoing

TRANSFERS: Final = "persistent://public/default/transfers"
DEBITS: Final = "persistent://public/default/debits"
CREDITS: Final = "persistent://public/default/credits"
REJECTS: Final = "persistent://public/default/rejects"
BALANCES: Final = "persistent://public/default/balances-by-minute"
LEDGER_CONTROL: Final = "persistent://public/default/ledger-control"
PLAIN_DEBITS: Final = "persistent://public/default/debits-at-least-once"
TOPICS: Final = (TRANSFERS, DEBITS, CREDITS, REJECTS, BALANCES, LEDGER_CONTROL, PLAIN_DEBITS)

PARTITIONS: Final = 3
_ACCOUNTS: Final = 500
_FIRST_MS: Final = 1_700_000_000_000
_MS_BETWEEN: Final = 40
_SCHEMA: Final = "id long, source string, target string, cents long"


class Transfer(NamedTuple):
    id: int
    source: str
    target: str
    cents: int
    at_ms: int

    @property
    def is_good(self) -> bool:
        return self.cents > 0 and self.source != self.target

    @property
    def minute_ms(self) -> int:
        return self.at_ms // 60_000 * 60_000

    def to_message(self) -> Outgoing:
        fields = {"id": self.id, "source": self.source, "target": self.target, "cents": self.cents}
        return Outgoing(
            json.dumps(fields).encode(), partition_key=self.source, event_timestamp=self.at_ms
        )

    @classmethod
    def from_message(cls, data: bytes, at_ms: int) -> "Transfer":
        return cls(**json.loads(data), at_ms=at_ms)


def make_transfers(count: int, seed: int) -> Iterator[Transfer]:
    """Transfers, of which about one in twenty is invalid."""
    chance = random.Random(seed)
    for number in range(count):
        source, target = (f"account-{chance.randrange(_ACCOUNTS):04}" for _ in range(2))
        cents = 0 if chance.random() < 0.05 else chance.randrange(1, 100_000)
        yield Transfer(number, source, target, cents, _FIRST_MS + number * _MS_BETWEEN)


def ledger(batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
    """The output of one micro-batch, by topic."""
    transfers = batch.select(
        F.from_json(F.col("value").cast("string"), _SCHEMA).alias("transfer"),
        F.col("__eventTime").alias("event_time"),
    ).select("transfer.*", "event_time")
    is_good = (F.col("cents") > 0) & (F.col("source") != F.col("target"))
    good, bad = transfers.where(is_good), transfers.where(~is_good)
    debits = good.select("id", F.col("source").alias("account"), -F.col("cents"), "event_time")
    credits = good.select("id", F.col("target").alias("account"), "cents", "event_time")
    return {
        DEBITS: _entries(debits),
        CREDITS: _entries(credits),
        REJECTS: bad.select(F.to_json(F.struct("id", "cents")).alias("value")),
        BALANCES: _balances(debits.union(credits)),
    }


def _entries(movements: DataFrame) -> DataFrame:
    named = movements.toDF("id", "account", "cents", "event_time")
    value = F.to_json(F.struct("id", "account", "cents"))
    return named.select(value.alias("value"), F.col("account").alias("key"), "event_time")


def _balances(movements: DataFrame) -> DataFrame:
    """Changes of balances by the minute. A balance is their sum over all batches."""
    by_minute = (
        movements.toDF("id", "account", "cents", "event_time")
        .groupBy("account", F.window("event_time", "1 minute").alias("window"))
        .agg(F.sum("cents").alias("cents"))
        .withColumn("minute_ms", F.unix_millis("window.start"))
    )
    value = F.to_json(F.struct("account", "minute_ms", "cents"))
    return by_minute.select(value.alias("value"), F.col("account").alias("key"))


def plain_debits(rows: list[Any]) -> list[bytes]:
    """The debits of collected source rows, for the sink without transactions."""
    transfers = (Transfer.from_message(bytes(row.value), 0) for row in rows)
    return [
        json.dumps({"id": transfer.id, "cents": -transfer.cents}).encode()
        for transfer in transfers
        if transfer.is_good
    ]
