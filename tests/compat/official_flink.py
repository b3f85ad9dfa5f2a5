"""Flink with its unmodified connectors for Pulsar and Kafka: a cluster in one JVM, driven from
Python by Py4J.

Jobs use only classes of Flink and its connector, so nothing needs to be compiled.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from official_java import jars_of, java_gateway

from pybroker.testing.broker_process import BrokerProcess

_POM: Final = Path(__file__).with_name("java") / "flink" / "pom.xml"
# Flink copies a job's objects by reflection into JDK classes, which Java 17 must be told to allow.
_OPENED: Final = ("java.lang", "java.util", "java.util.concurrent", "java.util.concurrent.atomic")
_OPTIONS: Final = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED]
PARALLELISM: Final = 2
_CHECKPOINT_MS: Final = 300
_SOON_S: Final = 120.0


class FlinkCluster:
    """Two task managers with a slot each: tasks of a killed one restart on another."""

    def __init__(self, gateway: Any) -> None:
        self._gateway, self.jvm = gateway, gateway.jvm
        self.flink = gateway.jvm.org.apache.flink
        self.connector = self.flink.connector.pulsar
        runtime = self.flink.runtime.minicluster
        builder = runtime.MiniClusterConfiguration.Builder()
        builder = builder.setNumTaskManagers(PARALLELISM).setNumSlotsPerTaskManager(1)
        self._cluster = runtime.MiniCluster(builder.withRandomPorts().build())
        self._cluster.start()
        self._killed = 0

    def source(self, broker: BrokerProcess, topic: str, ranges: Any = None) -> Any:
        """A source of strings from the topic's beginning; `ranges` selects keys."""
        schema = self.flink.api.common.serialization.SimpleStringSchema()
        start = self.connector.source.enumerator.cursor.StartCursor.earliest()
        builder = self.connector.source.PulsarSource.builder()
        builder = builder.setServiceUrl(broker.service_url).setAdminUrl(broker.admin_url)
        builder = builder.setTopics(self._list(topic)).setSubscriptionName("flink")
        builder = builder.setStartCursor(start).setDeserializationSchema(schema)
        if ranges is not None:
            builder = builder.setRangeGenerator(ranges)
        return builder.build()

    def ranges_of_keys(self, *keys: str) -> Any:
        ranges = self.connector.source.enumerator.topic.range
        builder = ranges.FixedKeysRangeGenerator.builder()
        for key in keys:
            builder = builder.key(key)
        return builder.build()

    def sink(self, broker: BrokerProcess, topic: str, transaction_ms: int | None = None) -> Any:
        """An exactly-once sink: messages become visible with their checkpoint."""
        schema = self.flink.api.common.serialization.SimpleStringSchema()
        guarantee = self.flink.connector.base.DeliveryGuarantee.EXACTLY_ONCE
        builder = self.connector.sink.PulsarSink.builder()
        builder = builder.setServiceUrl(broker.service_url).setAdminUrl(broker.admin_url)
        builder = builder.setTopics(self._list(topic)).setSerializationSchema(schema)
        builder = builder.setDeliveryGuarantee(guarantee)
        if transaction_ms is not None:
            option = self.connector.sink.PulsarSinkOptions.PULSAR_WRITE_TRANSACTION_TIMEOUT
            limit = self.flink.configuration.Configuration()
            limit.setLong(option, transaction_ms)
            builder = builder.setConfig(limit)
        return builder.build()

    def kafka_source(self, bootstrap: str, topic: str) -> Any:
        """A source of strings from the topic's beginning."""
        connector = self.flink.connector.kafka.source
        builder = connector.KafkaSource.builder().setBootstrapServers(bootstrap)
        builder = builder.setTopics(self._list(topic)).setGroupId("flink")
        earliest = connector.enumerator.initializer.OffsetsInitializer.earliest()
        schema = self.flink.api.common.serialization.SimpleStringSchema()
        builder = builder.setStartingOffsets(earliest).setValueOnlyDeserializer(schema)
        return builder.setProperty("isolation.level", "read_committed").build()

    def kafka_sink(self, bootstrap: str, topic: str, transaction_ms: int) -> Any:
        """An exactly-once sink: records become visible with their checkpoint."""
        connector = self.flink.connector.kafka.sink
        schema = self.flink.api.common.serialization.SimpleStringSchema()
        records = connector.KafkaRecordSerializationSchema.builder().setTopic(topic)
        builder = connector.KafkaSink.builder().setBootstrapServers(bootstrap)
        builder = builder.setRecordSerializer(records.setValueSerializationSchema(schema).build())
        guarantee = self.flink.connector.base.DeliveryGuarantee.EXACTLY_ONCE
        builder = builder.setDeliveryGuarantee(guarantee).setTransactionalIdPrefix("copies")
        return builder.setProperty("transaction.timeout.ms", str(transaction_ms)).build()

    @contextmanager
    def running(self, source: Any, sink: Any) -> Iterator[Any]:
        """Run a copying job; yields its id. Failed tasks restart, again and again."""
        environments = self.flink.streaming.api.environment
        environment = environments.StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM)
        environment.enableCheckpointing(_CHECKPOINT_MS)
        restarts = self.flink.api.common.restartstrategy.RestartStrategies
        environment.setRestartStrategy(restarts.fixedDelayRestart(1000, 100))
        watermarks = self.flink.api.common.eventtime.WatermarkStrategy.noWatermarks()
        environment.fromSource(source, watermarks, "source").sinkTo(sink)
        job = environment.getStreamGraph().getJobGraph()
        self._cluster.submitJob(job).get()
        try:
            yield job.getJobID()
        finally:
            self._cluster.cancelJob(job.getJobID()).get()

    def kill_a_task_manager(self) -> None:
        """Kill the oldest task manager, and start another."""
        self._cluster.terminateTaskManager(self._killed).get()
        self._killed += 1  # dead ones keep their numbers
        self._cluster.startTaskManager()

    def restarts(self, job: Any) -> int:
        """The total number of restarts of the job's tasks."""
        return sum(task.getAttemptNumber() for task in self._tasks(job))

    def wait_until_running_again(self, job: Any, restarts: int) -> None:
        """Wait until the job runs after more than `restarts` restarts."""
        give_up_at = time.monotonic() + _SOON_S
        while self.restarts(job) <= restarts or not self._is_running(job):
            assert time.monotonic() < give_up_at, "it does not run again"
            time.sleep(0.05)

    def _is_running(self, job: Any) -> bool:
        return {task.getState().toString() for task in self._tasks(job)} == {"RUNNING"}

    def _tasks(self, job: Any) -> list[Any]:
        graph = self._cluster.getArchivedExecutionGraph(job).get()
        vertices = graph.getAllExecutionVertices().iterator()
        found = []
        while vertices.hasNext():
            found.append(vertices.next().getCurrentExecutionAttempt())
        return found

    def close(self) -> None:
        self._cluster.closeAsync().get()

    def _list(self, topic: str) -> Any:
        return self.jvm.java.util.Collections.singletonList(topic)


def flink_jars() -> list[Path]:
    return jars_of(_POM, "flink")


@contextmanager
def flink_cluster() -> Iterator[FlinkCluster]:
    with java_gateway(flink_jars(), _OPTIONS) as gateway:
        cluster = FlinkCluster(gateway)
        yield cluster
        cluster.close()
