"""What a topic that was made scalable has from the ordinary topic of its name: schemas and
permissions.

Both may be repeated. What is granted later, on either name, is on both: see Permissions. Its
policies are those of the namespace, as for every scalable topic.
"""

from contextlib import suppress

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import TopicName
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.schemas.known_versions import number_of, schema_keys, version_key


async def inherit(topics: ServesTopics, metadata: MetadataStore, name: TopicName) -> None:
    former = name._replace(domain="persistent")
    for key in schema_keys(metadata, former):
        if (stored := metadata.get(key)) is not None:
            with suppress(BadVersion):  # it is there
                await metadata.put(version_key(name, number_of(key)), stored.value, -1)
    await topics.permissions.inherit(former, name)
