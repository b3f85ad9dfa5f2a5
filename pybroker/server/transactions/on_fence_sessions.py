"""FENCE_SESSIONS: another broker is about to grant a newer session of a transactional id.

This broker does not trust the sender: it catches up with the metadata and reads the epoch there.
Differs: Apache Pulsar has no such command; CONNECTED announces it (`supports_transactional_ids`).
"""

from pybroker.server.connections.connection import Connection
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId, check_id
from pybroker.wire import pulsar_api_pb2 as pb


async def fence_sessions(session: Connection, command: pb.CommandFenceSessions) -> None:
    """Raises NotAllowed for a bad id, ServiceNotReady while sessions are not known."""
    check_id(command.transactional_id)
    owner = command.owner if command.HasField("owner") else None
    wanted = TransactionalId(owner, command.transactional_id)
    aborted, clean = await session.services.sessions.fence(wanted, command.epoch)
    answer = pb.CommandFenceSessionsResponse(
        request_id=command.request_id, aborted=aborted, coordinator=sorted(clean)
    )
    session.send_command(answer)
