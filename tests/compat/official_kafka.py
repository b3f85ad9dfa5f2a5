"""Kafka's own clients and shell tools, from Maven Central's jars."""

import subprocess
from pathlib import Path
from typing import Any, Final

from official_java import jars_of

JAVA: Final = Path(__file__).with_name("java")
TOOL_TIMEOUT_S: Final = 120
TIMEOUT_MS: Final = "60000"


def newest_jars() -> list[Path]:
    """Kafka 4.3: clients, Kafka Streams, tools and broker."""
    return jars_of(JAVA / "kafka" / "pom.xml", "kafka")


def jars_of_3() -> list[Path]:
    """The clients of Kafka 3.9."""
    return jars_of(JAVA / "kafka3" / "pom.xml", "kafka3")


def spark_jars() -> list[Path]:
    """Spark's Kafka source and sink."""
    return jars_of(JAVA / "spark-kafka" / "pom.xml", "spark-kafka")


def connect_jars() -> list[Path]:
    """Kafka Connect 4.3, with its connectors for files."""
    of_files = jars_of(JAVA / "connect" / "pom.xml", "connect")
    return [*newest_jars(), *(jar for jar in of_files if jar.name.startswith("connect-file"))]


def kafka_jars() -> None:
    newest_jars()
    connect_jars()
    jars_of_3()
    spark_jars()


def shell_tool(main: str, *words: str) -> str:
    """The output of one of the programs in Kafka's bin/. Raises AssertionError with it if the
    program fails.
    """
    classpath = ":".join(map(str, newest_jars()))
    command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", classpath, main]
    ended = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def properties(gateway: Any, settings: dict[str, str]) -> Any:
    made = gateway.jvm.java.util.Properties()
    for key, value in settings.items():
        made.setProperty(key, value)
    return made


class OfficialAdmin:
    """`org.apache.kafka.clients.admin.Admin`."""

    def __init__(self, gateway: Any, bootstrap: str, **settings: str) -> None:
        self._jvm = gateway.jvm
        named = {key.replace("_", "."): value for key, value in settings.items()}
        given = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": TIMEOUT_MS}
        found = properties(gateway, given | named)
        self.api = gateway.jvm.org.apache.kafka.clients.admin
        self.common = gateway.jvm.org.apache.kafka.common
        self.client = self.api.Admin.create(found)

    def close(self) -> None:
        self.client.close()

    def create(self, name: str, partitions: int, **configs: str) -> None:
        topic = self.api.NewTopic(name, partitions, self._short(1))
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.client.createTopics([topic.configs(named)]).all().get()

    def _short(self, number: int) -> Any:
        return self._jvm.java.lang.Short.parseShort(str(number))

    def topic(self, name: str) -> Any:
        """Its TopicDescription."""
        return self.client.describeTopics([name]).allTopicNames().get()[name]

    def topics(self) -> set[str]:
        return set(self.client.listTopics().names().get().toArray())

    def configs(self, name: str) -> dict[str, str]:
        resource = self.resource(name)
        found = self.client.describeConfigs([resource]).all().get()[resource]
        return {entry.name(): entry.value() for entry in found.entries().toArray()}

    def resource(self, name: str, kind: str = "TOPIC") -> Any:
        kinds = self._jvm.java.lang.Class.forName(
            "org.apache.kafka.common.config.ConfigResource$Type"
        )
        return self.common.config.ConfigResource(
            self._jvm.java.lang.Enum.valueOf(kinds, kind), name
        )

    def set_config(self, topic: str, name: str, value: str) -> None:
        self._set(self.resource(topic), name, value)

    def set_group_config(self, group: str, name: str, value: str) -> None:
        self._set(self.resource(group, "GROUP"), name, value)

    def _set(self, resource: Any, name: str, value: str) -> None:
        kind = self._jvm.java.lang.Enum.valueOf(
            self._jvm.java.lang.Class.forName(
                "org.apache.kafka.clients.admin.AlterConfigOp$OpType"
            ),
            "SET",
        )
        change = self.api.AlterConfigOp(self.api.ConfigEntry(name, value), kind)
        self.client.incrementalAlterConfigs({resource: [change]}).all().get()

    def grow(self, name: str, partitions: int) -> None:
        more = self.api.NewPartitions.increaseTo(partitions)
        self.client.createPartitions({name: more}).all().get()

    def delete(self, name: str) -> None:
        self.client.deleteTopics([name]).all().get()
