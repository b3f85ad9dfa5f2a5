"""One Spark and one broker process, for all tests of this folder that need real ones."""

import os
import sys
from collections.abc import Iterator

import pytest

from pybroker.testing.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def spark():
    from pyspark.sql import SparkSession

    from pybroker.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "broker.conf"  # keeps topics: tests read them at the end
    config.write_text("brokerDeleteInactiveTopicsEnabled=false\n")
    with BrokerProcess(folder / "data", ["--config", str(config)]) as broker:
        yield broker
