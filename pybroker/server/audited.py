"""Wraps the table of handlers with the acting identity: the only place where commands are audited.

Everything that a deferred command creates or deletes is attributed to its connection. Refused
logins and operations are logged in the area `audit`, other refusals in `connections`. Messages,
successful acknowledgements and permits appear in neither.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pybroker.base.errors import AuthenticationError, AuthorizationError, PulsarError
from pybroker.base.machines import machine_of
from pybroker.logs import audit
from pybroker.server.connections.connection import Connection
from pybroker.server.handler import Handler
from pybroker.wire import pulsar_api_pb2 as pb

log = logging.getLogger("pybroker.session")

_TEXT_BYTES: Final = 200
# Acknowledgement conflicts and topics without a schema are normal.
_USUAL_REFUSALS: Final = frozenset({pb.BaseCommand.ACK, pb.BaseCommand.GET_SCHEMA})


def audited_handlers(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    return {kind: _audited(kind, handler) for kind, handler in handlers.items()}


def _audited(kind: int, handler: Handler) -> Handler:
    answering = replace(handler, answer_error=partial(_refused, kind, handler))
    if handler.deferred is None:
        return answering
    return replace(answering, deferred=partial(_as_its_client, handler))


async def _as_its_client(handler: Handler, session: Connection, body: Any) -> None:
    assert handler.deferred is not None
    audit.act_as(actor_of(session))
    await handler.deferred(session, body)


def _refused(
    kind: int, handler: Handler, session: Connection, body: Any, error: PulsarError
) -> None:
    if isinstance(error, AuthenticationError | AuthorizationError):
        result = type(error).__name__
        audit.refused(actor_of(session), _name(kind), _about(body), result, str(error))
    elif kind not in _USUAL_REFUSALS and log.isEnabledFor(logging.INFO):
        name, peer = _name(kind), session.peer
        limit = {
            "kind": f"refused {name} of {machine_of(session.address)}",
            "bucket": audit.REFUSALS,
        }
        log.info("refused %s of %s: %s: %s", name, peer, type(error).__name__, error, extra=limit)
    handler.answer_error(session, body, error)


def actor_of(session: Connection) -> audit.Actor:
    login = session.login
    return audit.Actor("" if login is None else "/".join(login.identity.roles), session.peer)


def _name(kind: int) -> str:
    return pb.BaseCommand.Type.Name(kind)


def _about(body: Any) -> str:
    """The topic or namespace in a command, with its subscription."""
    names = (getattr(body, field, "") for field in ("topic", "namespace", "subscription"))
    return " ".join(name[:_TEXT_BYTES] for name in names if isinstance(name, str) and name)
