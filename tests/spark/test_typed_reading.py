"""Topics with a schema that the official client has written; no Spark."""

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from pybroker.base.errors import NotAllowed
from pybroker.spark.datasource import PulsarDataSource


class Order(Record):
    id = Integer()


LongerOrder = type(Record)(
    "Order", (Record,), {"id": Integer(), "note": String(default=None, required_default=True)}
)


@pytest.fixture
def client(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url)
    yield client
    client.close()


@pytest.fixture
def rows(pulsar_broker):
    def rows(topic, **options):
        source = PulsarDataSource(
            {"service.url": pulsar_broker.service_url, "topics": topic} | options
        )
        schema = source.schema()
        reader = source.reader(schema)
        names = [name for name in schema.fieldNames() if not name.startswith("__")]
        return [
            {name: row[name] for name in names}
            for task in reader.partitions()
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]

    return rows


def send(client, topic, schema, *values):
    client.subscribe(topic, "keep").close()
    producer = client.create_producer(topic, schema=schema)
    for value in values:
        producer.send(value)
    producer.close()


def test_a_topic_of_strings_has_a_column_of_strings(client, rows):
    send(client, "texts", StringSchema(), "a", "ä")
    assert rows("texts") == [{"value": "a"}, {"value": "ä"}]


def test_a_topic_of_records_has_a_column_a_field(client, rows):
    send(client, "orders", JsonSchema(Order), Order(id=1), Order(id=2))
    assert rows("orders") == [{"id": 1}, {"id": 2}]


def test_values_are_raw_on_request(client, rows):
    send(client, "raw", JsonSchema(Order), Order(id=1))
    [row] = rows("raw", rawValue="true")
    assert row["value"].startswith(b"{")


def test_topics_of_different_schemas_are_read_raw_or_not_at_all(client, rows):
    send(client, "one", StringSchema(), "a")
    send(client, "two", JsonSchema(Order), Order(id=1))
    with pytest.raises(NotAllowed, match="different schemas"):
        rows("one,two")
    assert len(rows("one,two", allowDifferentTopicSchemas="true")) == 2


def test_a_topic_without_a_schema_has_bytes(client, rows):
    client.subscribe("plain", "keep").close()
    client.create_producer("plain").send(b"x")
    assert rows("plain") == [{"value": b"x"}]


def test_messages_of_an_earlier_version_have_no_value_in_a_new_column(client, rows):
    send(client, "growing", JsonSchema(Order), Order(id=1))
    send(client, "growing", JsonSchema(LongerOrder), LongerOrder(id=2, note="n"))
    assert rows("growing") == [{"id": 1, "note": None}, {"id": 2, "note": "n"}]
