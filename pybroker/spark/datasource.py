"""format("pulsar"): the class that Spark knows, which refers to the modules that implement it.

All options are in one table (pybroker.spark.options); each mode accepts its own. Spark starts
several Python processes for a query, and each imports this module. So reading does not import the
writing side, nor pyarrow.compute, which takes 50 ms.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from pybroker.base.errors import NotAllowed
from pybroker.spark import startup, writers
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.batch import PulsarBatchReader
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.reading.typed import topic_schema

_CHOSEN_PYTHON: Final = "PYSPARK_PYTHON"
_PUSHES_FILTERS: Final = "spark.sql.python.filterPushdown.enabled"
_TIME_ZONE: Final = "spark.sql.session.timeZone"


def register(spark: SparkSession) -> None:
    """Registers the format "pulsar" with `spark`; call it before the `load` of each query.

    In PySpark 4 all queries of one registration share a Java map, which each query changes when it
    starts. Two queries that start at once can corrupt the map; then every task fails with
    OptionalDataException. PySpark 4.1 and newer can push filters down to Python sources: this turns
    that on, unless the configuration is already set. It also sets the session's time zone to what
    it is. Spark's Python processes on this machine use this Python, unless another was chosen, and
    import the installed PySpark.
    """
    if not is_remote():
        _start_this_python(spark)
        _start_compiled(spark)
    writers.extend(is_remote())
    spark.dataSource.register(PulsarDataSource)
    conf = spark.conf.getAll
    if _PUSHES_FILTERS not in conf:
        spark.conf.set(_PUSHES_FILTERS, "true")
    if _TIME_ZONE not in conf and (time_zone := spark.conf.get(_TIME_ZONE)):
        spark.conf.set(_TIME_ZONE, time_zone)  # Tasks know what is set, not what holds by default.


def _refuse_tables(options: Mapping[str, str]) -> None:
    """Spark passes a table's options, and two of its own, to a Python source only when the table is
    created without columns; queries of the table get no options. Raises NotAllowed."""
    if not options or options.keys() >= {"provider", "owner"}:
        raise NotAllowed(
            f"{writers.NO_TABLES}: use CREATE TEMPORARY VIEW … USING pulsar OPTIONS (…), or "
            'format("pulsar") with options'
        )


def _start_this_python(spark: SparkSession) -> None:
    """Spark starts `python3`, which may not be the Python that has this package. On a cluster the
    driver's Python may not exist on executors: set PYSPARK_PYTHON there."""
    if _CHOSEN_PYTHON in os.environ:
        return
    context = spark.sparkContext
    chosen = context.getConf().contains("spark.pyspark.python")
    if (context.master or "").startswith("local") and not chosen:
        context.pythonExec = sys.executable


def _start_compiled(spark: SparkSession) -> None:
    """Puts pybroker.spark.startup on the path of the Python processes that Spark starts from now
    on. Where that folder does not exist, on another machine or inside a zip, it has no effect."""
    environment, folder = spark.sparkContext.environment, os.path.dirname(startup.__file__)
    given = environment.get("PYTHONPATH", "")
    if folder not in given.split(os.pathsep):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, given)))


class PulsarDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        _refuse_tables(self.options)
        return default_schema(topic_schema(chosen(self.options, Mode.READS)))

    def reader(self, schema: StructType) -> DataSourceReader:
        _refuse_tables(self.options)
        options = chosen(self.options, Mode.READ)
        return PulsarBatchReader(options, Shape.of(schema, topic_schema(options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = chosen(self.options, Mode.READ_STREAM)
        return PulsarStreamReader(options, Shape.of(schema, topic_schema(options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pybroker.spark.writing.sink import Plan, PulsarBatchWriter

        _refuse_tables(self.options)
        return PulsarBatchWriter(Plan(chosen(self.options, Mode.WRITE), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pybroker.spark.writing.sink import Plan, PulsarStreamWriter

        return PulsarStreamWriter(Plan(chosen(self.options, Mode.WRITE_STREAM), schema, overwrite))
