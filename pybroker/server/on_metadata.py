"""Lookup, partitions, topic lists, schemas: what clients ask before they work."""

from typing import TYPE_CHECKING, Any, Final

from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.schemas.registry import version_bytes
from pybroker.broker.tenants import NotFound
from pybroker.broker.topic_lists import TopicList
from pybroker.errors import (
    NotAllowed,
    PulsarError,
    ServiceNotReady,
    TopicNotFound,
)
from pybroker.names import TopicName
from pybroker.server.on_consume import Rest
from pybroker.server.on_produce import stored_schema
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.server.session import Session

_TYPE = pb.BaseCommand
NO_TOPICS: Final = TopicList(())


# -- LOOKUP


async def lookup(session: "Session", command: pb.CommandLookupTopic) -> None:
    name = TopicName.parse(command.topic)
    listener = command.advertised_listener_name
    if listener:
        raise ServiceNotReady(f"the broker do not have {listener} listener")
    session.services.topics.tenants.check_namespace(name.namespace_name)
    answer = pb.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl=session.broker_url,
        authoritative=True,
        proxy_through_service_url=False,
    )
    session.send_command(pb.BaseCommand(type=_TYPE.LOOKUP_RESPONSE, lookupTopicResponse=answer))


def lookup_failed(session: "Session", command: pb.CommandLookupTopic, error: PulsarError) -> None:
    answer = pb.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=pb.CommandLookupTopicResponse.Failed,
        error=error.code,  # type: ignore[arg-type]
        message=str(error),
    )
    session.send_command(pb.BaseCommand(type=_TYPE.LOOKUP_RESPONSE, lookupTopicResponse=answer))


async def partitioned_metadata(
    session: "Session", command: pb.CommandPartitionedTopicMetadata
) -> None:
    partitions = await session.services.topics.partitions_for_client(
        TopicName.parse(command.topic), command.metadata_auto_creation_enabled
    )
    answer = pb.CommandPartitionedTopicMetadataResponse(
        request_id=command.request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    _send_partitioned_metadata(session, answer)


def partitioned_metadata_failed(
    session: "Session", command: pb.CommandPartitionedTopicMetadata, error: PulsarError
) -> None:
    answer = pb.CommandPartitionedTopicMetadataResponse(
        request_id=command.request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=error.code,  # type: ignore[arg-type]
        message=str(error),
    )
    _send_partitioned_metadata(session, answer)


def _send_partitioned_metadata(
    session: "Session", answer: pb.CommandPartitionedTopicMetadataResponse
) -> None:
    session.send_command(
        pb.BaseCommand(type=_TYPE.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)
    )


def topics_of_namespace(session: "Session", command: pb.CommandGetTopicsOfNamespace) -> Rest | None:
    """All names, unfiltered: a pattern is the client's to match, so no client's regular
    expression ever runs here. Topic-list watchers are not advertised for the same reason.
    """
    try:
        found = session.services.topics.lists.known(command.namespace)
    except NotFound:
        found = NO_TOPICS
    if found is None:
        return _topics_once_found(session, command)
    _write_topics(session, command, found)
    return None


async def _topics_once_found(session: "Session", command: pb.CommandGetTopicsOfNamespace) -> None:
    found = await session.services.topics.lists.get(command.namespace)
    _write_topics(session, command, found)


def _write_topics(
    session: "Session", command: pb.CommandGetTopicsOfNamespace, found: TopicList
) -> None:
    found = _of_mode(found, command.mode)
    if command.topics_hash == found.hash:
        answer = commands.encode_topics([], found.hash, changed=False)
    elif not found.names:  # perhaps of a namespace that nobody has
        answer = commands.encode_topics([], found.hash, changed=True)
    else:
        answer = session.services.encoded_topics(command.namespace, command.mode, found)
    session.write(commands.topics_of_namespace(command.request_id, answer))


def _of_mode(found: TopicList, mode: int) -> TopicList:
    if mode == pb.CommandGetTopicsOfNamespace.ALL:
        return found
    wants_persistent = mode == pb.CommandGetTopicsOfNamespace.PERSISTENT
    return found.persistent if wants_persistent else found.nonpersistent


async def unsupported(session: "Session", command: Any) -> None:
    raise NotAllowed(f"{type(command).__name__} is not supported by this broker")


# -- schemas


async def get_schema(session: "Session", command: pb.CommandGetSchema) -> None:
    if len(command.schema_version) > 8:
        raise NotAllowed(f"A schema's version has 8 bytes, not {len(command.schema_version)}")
    asked = int.from_bytes(command.schema_version, "big") if command.schema_version else None
    name = TopicName.parse(command.topic)
    version = session.services.topics.schemas.get(name, asked)
    answer = pb.CommandGetSchemaResponse(
        request_id=command.request_id,
        schema=_wire_schema(version.schema),
        schema_version=version_bytes(version.number),
    )
    _send_schema(session, answer)


def get_schema_failed(session: "Session", command: pb.CommandGetSchema, error: PulsarError) -> None:
    answer = pb.CommandGetSchemaResponse(
        request_id=command.request_id,
        error_code=error.code,  # type: ignore[arg-type]
        error_message=str(error),
    )
    _send_schema(session, answer)


def _send_schema(session: "Session", answer: pb.CommandGetSchemaResponse) -> None:
    session.send_command(pb.BaseCommand(type=_TYPE.GET_SCHEMA_RESPONSE, getSchemaResponse=answer))


def _wire_schema(schema: StoredSchema) -> pb.Schema:
    return pb.Schema(
        name=schema.name,
        type=schema.type,  # type: ignore[arg-type]
        schema_data=schema.data,
        properties=[{"key": k, "value": v} for k, v in schema.properties.items()],
    )


async def get_or_create_schema(session: "Session", command: pb.CommandGetOrCreateSchema) -> None:
    topics = session.services.topics
    name = TopicName.parse(command.topic)
    if not topics.exists(name) and not topics.tenants.partitions(name):
        raise TopicNotFound(f"{name} does not exist: its schema would be nobody's")
    version = await topics.schemas.add(name, stored_schema(command.schema))
    _send_created_schema(
        session,
        pb.CommandGetOrCreateSchemaResponse(
            request_id=command.request_id, schema_version=version_bytes(version)
        ),
    )


def get_or_create_schema_failed(
    session: "Session", command: pb.CommandGetOrCreateSchema, error: PulsarError
) -> None:
    answer = pb.CommandGetOrCreateSchemaResponse(
        request_id=command.request_id,
        error_code=error.code,  # type: ignore[arg-type]
        error_message=str(error),
    )
    _send_created_schema(session, answer)


def _send_created_schema(session: "Session", answer: pb.CommandGetOrCreateSchemaResponse) -> None:
    session.send_command(
        pb.BaseCommand(type=_TYPE.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer)
    )
