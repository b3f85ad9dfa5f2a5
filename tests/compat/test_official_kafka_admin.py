"""Kafka's own administration: the Java clients of 3.9 and 4.3, and the shell tools of 4.3."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from credentials import TOKEN_SETTINGS, token
from official_java import java_gateway
from official_kafka import OfficialAdmin, jars_of_3, newest_jars, shell_tool
from py4j.protocol import Py4JJavaError

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = pytest.mark.java

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ACLS = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(kafka=True) as broker:
        yield broker


@pytest.fixture(scope="module", params=[jars_of_3, newest_jars], ids=["3.9", "4.3"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Any]:
    jars: Callable[[], list[Path]] = request.param
    with java_gateway(jars()) as gateway:
        yield gateway


@pytest.fixture
def admin(gateway: Any, broker: RunningBroker) -> Iterator[OfficialAdmin]:
    admin = OfficialAdmin(gateway, broker.kafka_bootstrap)
    yield admin
    admin.close()


@pytest.mark.kafka_client("Java 4.3", "administration")
def test_the_java_client_does_what_administrators_do(admin: OfficialAdmin) -> None:
    admin.create("java", 2, retention_ms="90000")
    described = admin.topic("java")
    assert [partition.partition() for partition in described.partitions()] == [0, 1]
    assert {partition.leader().id() for partition in described.partitions()} == {0}
    assert described.authorizedOperations() is None
    admin.grow("java", 4)
    assert len(admin.topic("java").partitions()) == 4
    assert admin.configs("java")["retention.ms"] == "90000"
    admin.set_config("java", "cleanup.policy", "compact")
    assert admin.configs("java")["cleanup.policy"] == "compact"
    admin.delete("java")
    assert "java" not in admin.topics()


def test_the_java_client_hears_what_is_wrong(admin: OfficialAdmin) -> None:
    with pytest.raises(Py4JJavaError) as refused:
        admin.create("java", 1, retention_ms="soon")
    assert "InvalidConfigurationException" in str(refused.value.java_exception)
    with pytest.raises(Py4JJavaError) as refused:
        admin.topic("nowhere")
    assert "UnknownTopicOrPartitionException" in str(refused.value.java_exception)


def test_the_java_client_sees_the_cluster(admin: OfficialAdmin) -> None:
    found = admin.client.describeCluster()
    assert found.clusterId().get() == "standalone"
    assert found.controller().get().id() == 0
    features = admin.client.describeFeatures().featureMetadata().get()
    assert features.finalizedFeatures() is not None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.kafka_client("Java 4.3", "logins")
def test_the_java_client_logs_in(gateway: Any, mechanism: str) -> None:
    settings = TOKEN_SETTINGS | {"authorization_enabled": True, "super_user_roles": ("admin",)}
    with pybroker.testing.broker(kafka=True, **settings) as broker:
        login = as_role("PLAIN", "any", token("admin"))
        admin = OfficialAdmin(gateway, broker.kafka_bootstrap, **login)
        if mechanism != "PLAIN":
            give_scram_password(admin)
            admin.close()
            admin = OfficialAdmin(
                gateway, broker.kafka_bootstrap, **as_role(mechanism, "admin", "a password")
            )
        admin.create("logged-in", 1)
        assert admin.topics() == {"logged-in"}
        admin.close()


def as_role(mechanism: str, user: str, password: str) -> dict[str, str]:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_jaas_config": f"org.apache.kafka.common.security.{kind}LoginModule required "
        f'username="{user}" password="{password}";',
    }


def give_scram_password(admin: OfficialAdmin) -> None:
    mechanism = admin.api.ScramMechanism.SCRAM_SHA_512
    info = admin.api.ScramCredentialInfo(mechanism, 4096)
    change = admin.api.UserScramCredentialUpsertion("admin", info, "a password")
    admin.client.alterUserScramCredentials([change]).all().get()


# -- the programs in Kafka's bin/


def test_kafka_topics_sh(broker: RunningBroker) -> None:
    address = "--bootstrap-server", broker.kafka_bootstrap
    made = shell_tool(
        TOPICS, *address, "--create", "--topic", "shell", "--partitions", "2",
        "--replication-factor", "3", "--config", "retention.ms=90000",
    )  # fmt: skip
    assert "Created topic shell." in made
    described = shell_tool(TOPICS, *address, "--describe", "--topic", "shell")
    assert "PartitionCount: 2" in described and "retention.ms=90000" in described
    assert "Partition: 1\tLeader: 0\tReplicas: 0\tIsr: 0" in described
    shell_tool(TOPICS, *address, "--alter", "--topic", "shell", "--partitions", "5")
    assert "shell" in shell_tool(TOPICS, *address, "--list").splitlines()
    shell_tool(TOPICS, *address, "--delete", "--topic", "shell")
    assert "shell" not in shell_tool(TOPICS, *address, "--list").splitlines()


def test_kafka_configs_sh(broker: RunningBroker) -> None:
    address = "--bootstrap-server", broker.kafka_bootstrap
    shell_tool(TOPICS, *address, "--create", "--topic", "configured")
    of_topic = "--entity-type", "topics", "--entity-name", "configured"
    added = "--add-config", "cleanup.policy=[compact,delete],max.message.bytes=1000"
    shell_tool(CONFIGS, *address, "--alter", *of_topic, *added)
    described = shell_tool(CONFIGS, *address, "--describe", *of_topic)
    assert "cleanup.policy=compact,delete" in described and "max.message.bytes=1000" in described
    shell_tool(CONFIGS, *address, "--alter", *of_topic, "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in shell_tool(CONFIGS, *address, "--describe", *of_topic)
    of_broker = "--entity-type", "brokers", "--entity-name", "0", "--all"
    assert "auto.create.topics.enable=true" in shell_tool(
        CONFIGS, *address, "--describe", *of_broker
    )


def test_kafka_cluster_sh(broker: RunningBroker) -> None:
    found = shell_tool(CLUSTER, "cluster-id", "--bootstrap-server", broker.kafka_bootstrap)
    assert "Cluster ID: standalone" in found


def test_kafka_log_dirs_sh(broker: RunningBroker) -> None:
    address = "--bootstrap-server", broker.kafka_bootstrap
    shell_tool(TOPICS, *address, "--create", "--topic", "measured")
    found = shell_tool(LOG_DIRS, *address, "--describe", "--broker-list", "0")
    assert '"logDir":"storage"' in found and '"error":null' in found


def test_kafka_acls_sh(tmp_path: Path) -> None:
    settings = TOKEN_SETTINGS | {"authorization_enabled": True, "super_user_roles": ("admin",)}
    login = as_role("PLAIN", "any", token("admin"))
    lines = [f"{key.replace('_', '.')}={value}" for key, value in login.items()]
    (tmp_path / "admin.properties").write_text("\n".join(lines))
    with pybroker.testing.broker(kafka=True, **settings) as broker:
        tool = (
            ACLS,
            "--bootstrap-server",
            broker.kafka_bootstrap,
            "--command-config",
            str(tmp_path / "admin.properties"),
        )
        shop = "--add", "--allow-principal", "User:shop", "--topic", "orders"
        shell_tool(*tool, *shop, "--producer")
        shell_tool(*tool, *shop, "--consumer", "--group", "billing")
        listed = shell_tool(*tool, "--list")
        assert "principal=User:shop, host=*, operation=WRITE, permissionType=ALLOW" in listed
        assert "resourceType=GROUP, name=billing" in listed
        gone = "--remove", "--allow-principal", "User:shop", "--topic", "orders", "--force"
        shell_tool(*tool, *gone)
        assert "orders" not in shell_tool(*tool, "--list")
