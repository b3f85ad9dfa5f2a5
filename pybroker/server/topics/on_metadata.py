"""Lookup, partitions, topic lists, schemas: requests before producing and consuming."""

from pybroker.base.errors import NotAllowed, PulsarError, TopicNotFound
from pybroker.base.listeners import Listener
from pybroker.base.names import TopicName, any_topic
from pybroker.broker.brokers.remote_namespaces import check_namespace
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.schemas.registry import version_bytes
from pybroker.broker.topics import Topics
from pybroker.server.connections.connection import Connection
from pybroker.server.publishing.on_producer import stored_schema
from pybroker.wire import pulsar_api_pb2 as pb

# -- LOOKUP


async def lookup(session: Connection, command: pb.CommandLookupTopic) -> None:
    clock = session.services.clock
    began_s = clock.monotonic_s()
    name = any_topic(command.topic)
    topics = session.services.topics
    listeners, own = session.services.listeners, Listener(*session.broker_urls)
    listeners.told(command.advertised_listener_name, own)  # refuses an unknown name
    await check_namespace(topics, name.namespace_name)
    response = pb.CommandLookupTopicResponse.Connect
    counts = session.services.counts
    counts.lookups_pending += 1
    try:
        owner = await topics.ownership.lookup(name, command.authoritative)
    finally:
        counts.lookups_pending -= 1
    if owner is not None:
        listeners, own = owner.listeners, Listener(*owner.address)
        if not owner.serves:
            response = pb.CommandLookupTopicResponse.Redirect
            counts.lookups_redirected += 1
    told = listeners.told(command.advertised_listener_name, own)
    answer = pb.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=response,
        # Some clients take a present but empty field for an address.
        brokerServiceUrl=told.broker_url or None,
        brokerServiceUrlTls=told.broker_url_tls or None,
        authoritative=True,
        proxy_through_service_url=False,
    )
    session.send_command(answer)
    counts.lookup_ms.add(1000 * (clock.monotonic_s() - began_s))


def lookup_failed(session: Connection, command: pb.CommandLookupTopic, error: PulsarError) -> None:
    session.services.counts.lookups_failed += 1
    answer = pb.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=pb.CommandLookupTopicResponse.Failed,
        error=error.code,  # type: ignore[arg-type]
        message=error.on_the_wire,
    )
    session.send_command(answer)


async def partitioned_metadata(
    session: Connection, command: pb.CommandPartitionedTopicMetadata
) -> None:
    partitions = await session.services.topics.partitions_for_client(
        TopicName.parse(command.topic), command.metadata_auto_creation_enabled
    )
    answer = pb.CommandPartitionedTopicMetadataResponse(
        request_id=command.request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    session.send_command(answer)


# -- schemas


async def get_schema(session: Connection, command: pb.CommandGetSchema) -> None:
    if len(command.schema_version) > 8:
        raise NotAllowed(
            f"A schema version can have at most 8 bytes, not {len(command.schema_version)}"
        )
    asked = int.from_bytes(command.schema_version, "big") if command.schema_version else None
    name, clock = TopicName.parse(command.topic), session.services.clock
    began_s = clock.monotonic_s()
    version = await session.services.topics.schemas.found(name, asked)
    answer = pb.CommandGetSchemaResponse(
        request_id=command.request_id,
        schema=_wire_schema(version.schema),
        schema_version=version_bytes(version.number),
    )
    session.send_command(answer)
    took_ms = 1000 * (clock.monotonic_s() - began_s)
    session.services.counts.schema_read(name.namespace_name, took_ms)


def _wire_schema(schema: StoredSchema) -> pb.Schema:
    return pb.Schema(
        name=schema.name,
        type=schema.type,  # type: ignore[arg-type]
        schema_data=schema.data,
        properties=[{"key": k, "value": v} for k, v in schema.properties.items()],
    )


async def get_or_create_schema(session: Connection, command: pb.CommandGetOrCreateSchema) -> None:
    topics = session.services.topics
    name = TopicName.parse(command.topic)
    if not _is_there(topics, name):
        await topics.ownership.refreshed()  # another broker may have just created it
        if not _is_there(topics, name):
            raise TopicNotFound(f"{name} does not exist: create the topic before adding a schema")
    version = await topics.schemas.add(name, stored_schema(command.schema))
    answer = pb.CommandGetOrCreateSchemaResponse(
        request_id=command.request_id, schema_version=version_bytes(version)
    )
    session.send_command(answer)


def _is_there(topics: Topics, name: TopicName) -> bool:
    return topics.exists(name) or topics.tenants.partitions(name) > 0
