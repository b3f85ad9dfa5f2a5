"""Workers that share a transactional id, on several brokers.

Each life of a worker publishes on some of the topics only. So a newer session may never reach a
broker where an older one still works, and only other brokers can tell that broker. With several
topics, a session may begin on several brokers at once.
"""

import asyncio
from typing import Any

from features.fencing import TOPICS, Fencing, Worker


class WorkerOfSomeTopics(Worker):
    async def open(self, client: Any) -> dict[str, Any]:
        topics = self.rng.choice((TOPICS, TOPICS[:1], TOPICS[1:]))
        made = await asyncio.gather(*map(client.create_producer, topics))
        return dict(zip(topics, made, strict=True))


class FencingOverBrokers(Fencing):
    name = "fencing over brokers"
    worker = WorkerOfSomeTopics
