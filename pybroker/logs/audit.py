"""The lines of the area `audit`: who did what to which object, from where, with which result.

A context variable carries the actor from the edge (a command of a connection, a request) to the
place where an object is created or deleted, through the tasks started on the way. For timed work
the actor is the broker itself.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from pybroker.base.machines import machine_of
from pybroker.logs.lines import with_fields
from pybroker.logs.output import Bucket

log = logging.getLogger("pybroker.audit")

CHANGES: Final = Bucket(2000, 200.0)  # enough for an administrator's script
REFUSALS: Final = Bucket(50, 5.0)
OK: Final = "ok"
CREATE_SUBSCRIPTION: Final = "create subscription"
_LONGEST: Final = 300  # characters of a field that a peer chose


@dataclass(frozen=True, slots=True)
class Actor:
    """`who` is a role, empty without authentication; `address` is host:port; `why` is the reason
    for the actor's changes, if any.
    """

    who: str
    address: str = ""
    why: str = ""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


BROKER: Final = Actor("the broker")
_ACTOR: ContextVar[Actor] = ContextVar("actor", default=BROKER)


def act_as(actor: Actor) -> None:
    """Set the actor from now on, in this task and in the tasks that it starts."""
    _ACTOR.set(actor)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    token = _ACTOR.set(actor)
    try:
        yield
    finally:
        _ACTOR.reset(token)


def current_actor() -> Actor:
    return _ACTOR.get()


class Tally:
    """Counts successful changes of one kind, for a command that makes many of them."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.count = 0
        self.first = ""
        self.is_open = True

    def takes(self, what: str, on: object, result: str | int, why: str) -> bool:
        if not self.is_open or what != self.what or result != OK or why:
            return False
        self.first = self.first or str(on)
        self.count += 1
        return True


_TALLY: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Log all successful changes of this kind that are made inside the block, in this task and the
    tasks that it starts, as one line at its end: the first change, and the number of others. Also
    after an error.
    """
    tally = Tally(what)
    token = _TALLY.set(tally)
    try:
        yield
    finally:
        _TALLY.reset(token)
        tally.is_open = False  # a task that outlives the command writes its own lines
        if tally.count:
            more = f", and {tally.count - 1:,} more" if tally.count > 1 else ""
            # Truncate the first name, never the count.
            done(what, tally.first[: _LONGEST - len(more)] + more)


def done(what: str, on: object, result: str | int = OK, why: str = "") -> None:
    """Log a change that succeeded or failed. `why` is its reason, if it was not the actor's
    request.
    """
    tally = _TALLY.get()
    if tally is not None and tally.takes(what, on, result, why):
        return
    if log.isEnabledFor(logging.INFO):
        _say(logging.INFO, CHANGES, _ACTOR.get(), what, str(on), result, why)


def refused(actor: Actor, what: str, on: str, result: str | int, why: str) -> None:
    """Log a refused login or operation."""
    if log.isEnabledFor(logging.WARNING):
        _say(logging.WARNING, REFUSALS, actor, f"refused {what}", on, result, why)


def _say(
    level: int,
    bucket: Bucket,
    actor: Actor,
    what: str,
    on: str,
    result: str | int,
    why: str = "",
) -> None:
    fields: dict[str, str | int] = {
        "who": actor.who[:_LONGEST] or "-",
        "from": actor.address or "-",
        "on": on[:_LONGEST] or "-",
        "result": result,
    }
    if why or actor.why:
        fields["why"] = (why or actor.why)[:_LONGEST]
    kind = _kind(actor, bucket is REFUSALS)
    limit = {"bucket": bucket, "kind": kind}
    log.log(level, "%s", what[:_LONGEST], extra={**with_fields(fields), **limit})


def _kind(actor: Actor, is_refusal: bool) -> str:
    """The kind of a line; lines of one kind share a limit. Successful changes are limited per role,
    so that one role does not use up the limit of others at its address (a proxy, say). Refusals are
    not: a refused client may claim any role.
    """
    machine = machine_of(actor.host) if actor.host else "the broker itself"
    if is_refusal or not actor.who or not actor.host:
        return f"{'refusals' if is_refusal else 'changes'} from {machine}"
    return f"changes by {actor.who[:_LONGEST]} from {machine}"
