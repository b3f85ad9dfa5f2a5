"""format("pulsar"): the one class that Spark knows, and which part of ours does what.

The options are of one table (pybroker.spark.options); each way of use takes those that are its own.
Spark makes several Python processes for a query, which import this anew: who reads does not import
what writes, nor pyarrow.compute, which takes 50 ms.
"""

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

from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.batch import PulsarBatchReader
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.reading.typed import topic_schema

_PUSHES_FILTERS: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes the format "pulsar" known to `spark`; before the `load` of each query.

    PySpark 4 lets all queries of one registration share a Java map that each changes as it starts.
    Two that start at once can break it, and every task then fails with OptionalDataException.
    PySpark 4.1 and newer push filters down to sources in Python where a configuration says so: here
    it does, unless it was set already.
    """
    spark.dataSource.register(PulsarDataSource)
    if _PUSHES_FILTERS not in spark.conf.getAll:
        spark.conf.set(_PUSHES_FILTERS, "true")


class PulsarDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        return default_schema(topic_schema(chosen(self.options, Mode.READS)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = chosen(self.options, Mode.READ)
        return PulsarBatchReader(options, Shape.of(schema, topic_schema(options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = chosen(self.options, Mode.READ_STREAM)
        return PulsarStreamReader(options, Shape.of(schema, topic_schema(options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pybroker.spark.writing.sink import Plan, PulsarBatchWriter

        return PulsarBatchWriter(Plan(chosen(self.options, Mode.WRITE), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pybroker.spark.writing.sink import Plan, PulsarStreamWriter

        return PulsarStreamWriter(Plan(chosen(self.options, Mode.WRITE_STREAM), schema, overwrite))
