"""The schema of a query's topics at planning time."""

from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import Chosen
from pybroker.spark.reading.survey import survey_of
from pybroker.spark.reading.topics import Topics
from pybroker.spark.schemas.values import TopicSchema, one_schema
from pybroker.spark.session import Session


def topic_schema(options: Chosen) -> TopicSchema | None:
    """None if raw values are read. Raises NotAllowed if the topics' schemas differ."""
    if options["rawValue"]:
        return None
    session = Session(Endpoint.of(options).connect())
    try:
        found = survey_of(session).schemas(Topics.of(options).bases(session))
    finally:
        session.close()
    return one_schema(list(found.items()), options["allowDifferentTopicSchemas"])
