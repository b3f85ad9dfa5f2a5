"""A client's session of a transactional id: what it says of itself wherever that counts.

The client gives its session a name of its own, and says the epoch that the broker's answers told,
so the broker takes it for the same one on all its connections, and after each reconnection.
"""

import random
from typing import Final

from pybroker.base.errors import NotAllowed
from pybroker.client.connection.connection import Connection
from pybroker.client.errors import InvalidConfiguration
from pybroker.wire import pulsar_api_pb2 as pb

_EPOCH_BITS: Final = 32  # of a topic epoch; above them stands the session's


class ClientSession:
    def __init__(self, transactional_id: str, rng: random.Random) -> None:
        """Raises InvalidConfiguration."""
        if not transactional_id:
            raise InvalidConfiguration("The transactional id is empty: leave it out, or name it")
        self._id = transactional_id
        self._name = f"{rng.getrandbits(128):032x}"
        self._epoch = 0

    def require_of(self, connection: Connection) -> None:
        """A broker that knows of no sessions would let two of them go on. Raises NotAllowed."""
        if not connection.fences_sessions:
            raise NotAllowed(
                "This broker does not fence sessions: leave out the client's transactional_id"
            )

    def with_properties(self, properties: dict[str, str] | None) -> dict[str, str]:
        """Of a producer."""
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
