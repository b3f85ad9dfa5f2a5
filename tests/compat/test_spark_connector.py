"""The unmodified pulsar-spark connector, in all its modes of reading and writing.

Its newest version on Maven Central was built for Spark 3.1. It runs with PySpark 3.4, the first
version for Python 3.11, which uses the same Scala. The connector has no limits for a trigger.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from credentials import SECRET_URL, token
from environments import environment
from official_java import jars_of

from pybroker.client import Authentication, AuthenticationToken, Client, InitialPosition
from pybroker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

HERE: Final = Path(__file__).parent
SPARK: Final = ("pyspark==3.4.4", "setuptools<81")
TOPIC: Final = "persistent://public/default/connected"
ROWS: Final = sorted([str(number), "k", TOPIC] for number in range(60))
SECURED: Final = f"""
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey={SECRET_URL}
authorizationEnabled=true
superUserRoles=alice
"""


def run(broker: BrokerProcess, folder: Path, options: dict[str, str]) -> Any:
    python = environment("connector", SPARK)
    jars = ",".join(map(str, jars_of(HERE / "java" / "connector" / "pom.xml", "connector")))
    given = {"service.url": broker.service_url, "admin.url": broker.admin_url, **options}
    job = [python, HERE / "connector_job.py", jars, TOPIC, folder, json.dumps(given)]
    environ = {**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(job, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def publish(broker: BrokerProcess, authentication: Authentication | None) -> None:
    with Client(broker.service_url, authentication=authentication) as client:
        for name in ("keep", "mine"):
            client.subscribe(TOPIC, name, initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(len(ROWS)):
            producer.send(b"%d" % number, partition_key="k")


@pytest.fixture(scope="module", params=["plain", "token"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("connector")
    is_secured = request.param == "token"
    config = folder / "broker.conf"
    config.write_text(SECURED if is_secured else "")
    options = {
        "pulsar.client.authPluginClassName": (
            "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        ),
        "pulsar.client.authParams": f"token:{token()}",
    }
    with BrokerProcess(folder / "data", ["--config", str(config)]) as broker:
        publish(broker, AuthenticationToken(token()) if is_secured else None)
        yield run(broker, folder, options if is_secured else {})


def test_it_reads_a_topic_as_a_frame(seen: Any) -> None:
    assert seen["read"] == ROWS


def test_it_reads_a_topic_as_a_stream(seen: Any) -> None:
    assert seen["stream"] == ROWS


def test_it_reads_on_a_subscription_that_was_there(seen: Any) -> None:
    assert seen["predefined"] == ROWS


def test_it_writes_a_frame(seen: Any) -> None:
    assert sorted(int(value) for value, _, _ in seen["written"]) == list(range(100))
    assert {key for _, key, _ in seen["written"]} == {"k"}


def test_it_writes_a_stream(seen: Any) -> None:
    assert sorted(value for value, _, _ in seen["copied"]) == [value for value, _, _ in ROWS]
