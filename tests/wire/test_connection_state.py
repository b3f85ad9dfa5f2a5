"""One table lists the commands that a connection may receive, and each has a handler."""

from pybroker.server.handlers import HANDLERS
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.connection_state import ACCEPTED, ConnectionState

ACCEPTED_ANYWHERE = frozenset().union(*ACCEPTED.values())


def test_the_table_names_each_state() -> None:
    assert set(ACCEPTED) == set(ConnectionState)


def test_every_accepted_command_has_a_handler_and_no_other() -> None:
    assert set(HANDLERS) == ACCEPTED_ANYWHERE


def test_a_handler_reads_a_body_of_its_own() -> None:
    fields = [handler.field for handler in HANDLERS.values()]
    assert len(set(fields)) == len(fields)
    assert set(fields) <= set(pb.BaseCommand.DESCRIPTOR.fields_by_name)


def test_a_handler_answers_at_once_or_later() -> None:
    for handler in HANDLERS.values():
        ways = (handler.immediate, handler.deferred, handler.begun)
        assert sum(way is not None for way in ways) == 1
