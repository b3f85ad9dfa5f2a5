"""A Kafka Streams application: counts the records of each key, exactly once (exactly_once_v2).

kafka_streams_app.py BOOTSTRAP FOLDER: each count is a record of the output, as text.
"""

import sys
import threading

from official_java import java_gateway
from official_kafka import newest_jars, properties

INPUT = "streams-in"
OUTPUT = "streams-out"
SETTINGS = {
    "application.id": "counting",
    "processing.guarantee": "exactly_once_v2",
    "commit.interval.ms": "100",
    "statestore.cache.max.bytes": "0",  # each record changes the output
    "num.stream.threads": "1",
    "replication.factor": "1",
    "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "consumer.auto.offset.reset": "earliest",
    "consumer.session.timeout.ms": "6000",
    "consumer.heartbeat.interval.ms": "1000",
    "producer.transaction.timeout.ms": "10000",
}


def main(bootstrap: str, folder: str) -> None:
    with java_gateway(newest_jars(), ["-Xmx256m"]) as gateway:
        kafka = gateway.jvm.org.apache.kafka
        streams, serdes = kafka.streams, kafka.common.serialization.Serdes
        builder = streams.StreamsBuilder()
        store = streams.state.Stores.inMemoryKeyValueStore("counts")
        counts = builder.stream(INPUT).groupByKey().count(_as(streams, store))
        counts.toStream().to(OUTPUT, _with(streams, serdes.String(), serdes.Long()))
        settings = SETTINGS | {"bootstrap.servers": bootstrap, "state.dir": folder}
        running = streams.KafkaStreams(builder.build(), properties(gateway, settings))
        running.start()
        threading.Event().wait()  # until it is killed


def _as(streams, store):
    return getattr(streams.kstream.Materialized, "as")(store)


def _with(streams, keys, values):
    return getattr(streams.kstream.Produced, "with")(keys, values)


if __name__ == "__main__":
    main(*sys.argv[1:])
