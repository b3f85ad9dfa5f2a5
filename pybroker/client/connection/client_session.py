"""A client's session of a transactional id: how the client identifies it to brokers.

The client chooses a name for its session and repeats the epoch from the broker's answers, so the
broker recognises the session on all its connections and after each reconnection.
"""

import random
from typing import Final

from pybroker.base.errors import NotAllowed
from pybroker.client.connection.connection import Connection
from pybroker.client.errors import InvalidConfiguration
from pybroker.wire import pulsar_api_pb2 as pb

_EPOCH_BITS: Final = 32  # of a topic epoch; the session's epoch is in the bits above


class ClientSession:
    def __init__(self, transactional_id: str, rng: random.Random) -> None:
        """Raises InvalidConfiguration if the id is empty."""
        if not transactional_id:
            raise InvalidConfiguration("The transactional id is empty: leave it out, or set a name")
        self._id = transactional_id
        self._name = f"{rng.getrandbits(128):032x}"
        self._epoch = 0

    def require_of(self, connection: Connection) -> None:
        """Raises NotAllowed for a broker without sessions, which would not fence older ones."""
        if not connection.fences_sessions:
            raise NotAllowed(
                "This broker does not fence sessions: leave out the client's transactional_id"
            )

    def with_properties(self, properties: dict[str, str] | None) -> dict[str, str]:
        """The metadata of a producer."""
        return {
            **(properties or {}),
            "txn.transactional.id": self._id,
            "txn.session": self._name,
        }

    def told_producer(self, answer: pb.CommandProducerSuccess) -> None:
        self._epoch = self._epoch or answer.topic_epoch >> _EPOCH_BITS

    def name_in(self, request: pb.CommandNewTxn) -> None:
        request.transactional_id, request.session = self._id, self._name
        request.session_epoch = self._epoch

    def told_transaction(self, answer: pb.CommandNewTxnResponse) -> None:
        self._epoch = self._epoch or answer.session_epoch
