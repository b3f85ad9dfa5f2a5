"""What a topic that was made scalable has from the ordinary topic of its name: schemas and
permissions.

Both may be repeated. Its policies are those of the namespace, as for every scalable topic.
"""

from contextlib import suppress

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.permissions import OnTopic
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.schemas.known_versions import number_of, schema_keys, version_key


async def inherit(topics: ServesTopics, metadata: MetadataStore, name: TopicName) -> None:
    former = name._replace(domain="persistent")
    for key in schema_keys(metadata, former):
        if (stored := metadata.get(key)) is not None:
            with suppress(BadVersion):  # it is there
                await metadata.put(version_key(name, number_of(key)), stored.value, -1)
    granted = topics.permissions.grants(name.namespace_name).topics
    if (roles := granted.get(str(former))) and str(name) not in granted:
        wanted = [OnTopic(name, role, actions) for role, actions in roles.items()]
        await topics.permissions.set_on_topics(wanted)
