"""Event times without a time zone: the same as with Spark's own cast, whoever writes them."""

from datetime import datetime

import numpy as np
import pytest
from pyspark.sql import SparkSession

from pybroker.base.errors import NotAllowed
from pybroker.demo.topics import read_all
from pybroker.spark.writing.local_times import SESSION_TIME_ZONE, utc_us

TIMES = (
    "2024-03-10 01:59:59.999999",
    "2024-03-10 02:30:00",  # skipped in New York
    "2024-03-10 03:00:00",
    "2024-11-03 01:30:00.000001",  # passed twice in New York
    "2024-04-07 01:45:00",  # passed twice on Lord Howe, whose clock is changed by half an hour
    "2024-10-06 02:10:00",  # skipped there
    "1883-11-18 12:03:57",  # a change within a quarter of an hour
    "1883-11-18 12:03:59",
    "1969-12-31 23:59:59.999999",
    "1970-01-01 00:00:00",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
)
ZONES = (
    *("America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Europe/Berlin", "UTC", "Z"),
    *("+05:30", "-08:00", "UTC+1", "GMT-03:30"),
)


def microseconds(text):
    since = datetime.fromisoformat(text) - datetime(1970, 1, 1)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


@pytest.fixture
def zone(spark: SparkSession):
    before = spark.conf.get(SESSION_TIME_ZONE)
    yield lambda name: spark.conf.set(SESSION_TIME_ZONE, name)
    spark.conf.set(SESSION_TIME_ZONE, before)


@pytest.mark.spark
@pytest.mark.parametrize("name", ZONES)
def test_a_local_time_is_what_spark_casts_it_to(spark, zone, name):
    zone(name)
    casts = [f"unix_micros(cast(timestamp_ntz'{text}' as timestamp))" for text in TIMES]
    wanted = list(spark.sql(f"select {', '.join(casts)}").first())
    assert utc_us(np.array([microseconds(text) for text in TIMES]), name).tolist() == wanted


@pytest.mark.parametrize("name", [None, "Atlantis/Centre", "../etc"])
def test_an_unknown_time_zone_is_an_error_that_says_what_to_do(name):
    with pytest.raises(NotAllowed, match="cast the column to timestamp"):
        utc_us(np.array([0]), name)


@pytest.mark.spark
def test_a_row_is_written_with_the_event_time_that_spark_casts_it_to(spark, broker, zone):
    zone("America/New_York")
    rows = spark.sql(
        "select string(n) value, if(n = 1, null, timestamp_ntz'2024-03-10 12:34:56.789') "
        "`__eventTime` from values (0), (1) as t(n)"
    )
    topic = "persistent://public/default/local-event-times"
    named = {"service.url": broker.service_url, "topic": topic}
    rows.write.format("pulsar").mode("append").options(**named).save()
    found = {m.data(): m.event_timestamp() for m in read_all(broker.service_url, [topic])}
    assert found == {b"0": 1_710_088_496_789, b"1": 0}


@pytest.mark.spark
def test_tasks_know_the_time_zone_that_holds_by_default(spark):
    assert SESSION_TIME_ZONE in spark.conf.getAll
