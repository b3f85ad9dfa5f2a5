"""Workers that share a transactional id, on several brokers.

Each life of a worker publishes on some of the topics only. So a newer session may never reach a
broker where an older one goes on: only the other brokers can tell it.
"""

from collections.abc import Sequence

from features.fencing import TOPICS, Fencing, Worker


class WorkerOfSomeTopics(Worker):
    def topics(self) -> Sequence[str]:
        return self.rng.choice((TOPICS, TOPICS[:1], TOPICS[1:]))


class FencingOverBrokers(Fencing):
    name = "fencing over brokers"
    worker = WorkerOfSomeTopics
