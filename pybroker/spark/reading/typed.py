"""The schema that a query's topics have, as it is when the query is planned."""

from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import Chosen
from pybroker.spark.reading.survey import survey_of
from pybroker.spark.reading.topics import Topics
from pybroker.spark.schemas.values import TopicSchema, one_schema
from pybroker.spark.session import Session


def topic_schema(options: Chosen) -> TopicSchema | None:
    """None where values are read as they are. Raises NotAllowed if the topics' schemas differ."""
    if options["rawValue"]:
        return None
    session = Session(Endpoint.of(options).connect())
    try:
        found = survey_of(session).schemas(Topics.of(options).bases(session))
    finally:
        session.close()
    return one_schema(list(found.items()), options["allowDifferentTopicSchemas"])
