"""Required encryption: closes producers that do not encrypt when the policy is set."""

from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.policies.limits import unencrypted
from pybroker.broker.policies.table import ENCRYPTION_REQUIRED


class EncryptedProducers:
    def follow(self, topic: ServedTopic) -> None:
        if not topic.policies[ENCRYPTION_REQUIRED]:
            return
        plain = [each for each in topic.producers.everybody() if not each.encrypts]
        for producer in plain:
            topic.producers.send_away(producer, unencrypted(topic.name))
        if plain:  # producers that encrypt may be waiting
            topic.tasks.start(topic.producers.let_next_in(), "the next producer")
