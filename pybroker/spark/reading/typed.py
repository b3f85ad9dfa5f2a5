"""The schema that a query's topics have, as it is when the query is planned."""

from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import Chosen
from pybroker.spark.reading.topics import Topics
from pybroker.spark.schemas.values import TopicSchema, one_schema
from pybroker.spark.session import Session


def topic_schema(options: Chosen) -> TopicSchema | None:
    """None where values are read as they are. Raises NotAllowed if the topics' schemas differ."""
    if options["rawValue"]:
        return None
    session = Session(Endpoint.of(options).connect())
    try:
        names = Topics.of(options).bases(session)
        found = [(name, _of(session, name)) for name in names]
    finally:
        session.close()
    return one_schema(found, options["allowDifferentTopicSchemas"])


def _of(session: Session, topic: str) -> TopicSchema | None:
    schema = session.client.get_schema(topic)
    typed = None if schema is None else TopicSchema.of(schema)
    return typed if typed is not None and typed.is_typed else None
