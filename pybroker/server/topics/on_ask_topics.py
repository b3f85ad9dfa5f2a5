"""ASK_TOPICS: many topics in one command, without a consumer on any of them.

Differs: Apache Pulsar has no such command; CONNECTED announces it (`supports_asking_topics`).
"""

import asyncio
from typing import Final

from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import NamingError
from pybroker.base.names import TopicName, check_client
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.short_spans import Allowance
from pybroker.broker.persistent.topic_questions import Answer, Asked, Question, answer
from pybroker.logs import audit
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.requests import as_answer
from pybroker.server.consuming.on_acknowledge import position_of
from pybroker.wire import pulsar_api_pb2 as pb

# How many questions of a command are answered concurrently: subscriptions created together share a
# commit.
_AT_ONCE: Final = 200
_ANSWERS_A_TURN: Final = 50


async def ask_topics(session: Connection, command: pb.CommandAskTopics) -> None:
    """The answer for a missing or unavailable topic is an error.

    A command has at most `wire.commands.MAX_PARTS` questions, like the parts of any command.
    """
    asked = _asked(command)
    if asked.schema_only:  # no schema is an answer, too: include what other brokers have just added
        await session.services.topics.ownership.refreshed()
    if command.read_bytes:
        await session.until_writable()
    answers: list[pb.TopicAnswer] = []
    pace = Pace(_ANSWERS_A_TURN)
    with audit.in_one_line(audit.CREATE_SUBSCRIPTION):
        for at in range(0, len(command.question), _AT_ONCE):
            some = command.question[at : at + _AT_ONCE]
            if asked.creates and not command.read_bytes:
                answers += await asyncio.gather(*(_answer(session, asked, each) for each in some))
            else:
                for each in some:
                    answers.append(await _answer(session, asked, each))
                    await pace.step()
            if session.closed:
                return  # nobody to answer
    answer = pb.CommandAskTopicsResponse(request_id=command.request_id, answer=answers)
    session.send_command(answer)


def _asked(command: pb.CommandAskTopics) -> Asked:
    """Raises NamingError for a bad name of the subscription."""
    if not command.HasField("subscription"):
        return Asked(
            sample_messages=command.sample_messages,
            schema_only=command.schema_only,
            allowance=Allowance(command.read_bytes),
        )
    if not command.subscription.strip():
        raise NamingError("The subscription name is empty; set one")
    check_client("Subscription", command.subscription, {})
    earliest = command.initial_position == pb.CommandSubscribe.Earliest
    return Asked(
        command.subscription,
        EARLIEST if earliest else None,
        command.HasField("initial_position"),
        command.sample_messages,
        command.schema_only,
        Allowance(command.read_bytes),
    )


async def _answer(session: Connection, asked: Asked, question: pb.TopicQuestion) -> pb.TopicAnswer:
    try:
        found = await answer(session.services.topics, asked, _question(question))
    except Exception as error:
        refused = as_answer(error)
        return pb.TopicAnswer(error=refused.code, message=str(refused))  # type: ignore[arg-type]
    return _on_the_wire(found)


def _question(question: pb.TopicQuestion) -> Question:
    """Raises InvalidTopicName for a bad name of the topic."""

    def place(field: str, value: pb.MessageIdData) -> Position | None:
        return position_of(value) if question.HasField(field) else None

    return Question(
        TopicName.parse(question.topic),
        place("after", question.after),
        place("first_from", question.first_from),
        place("acknowledge", question.acknowledge),
        place("published", question.published),
        place("read_to", question.read_to),
    )


def _on_the_wire(found: Answer) -> pb.TopicAnswer:
    answer = pb.TopicAnswer()
    if found.schema_digest:
        answer.schema_digest = found.schema_digest
    if found.last.entry_id >= 0:
        answer.last.ledgerId, answer.last.entryId = found.last
    if found.entries_behind is not None:
        answer.entries_behind = found.entries_behind
    if found.sample is not None:
        answer.sample_entries, answer.sample_messages, answer.sample_bytes = found.sample
    if found.first is not None:
        answer.first.ledgerId, answer.first.entryId = found.first
    if found.published_ms is not None:
        answer.published_ms = found.published_ms
    if found.handed_over is not None and found.handed_over.is_whole is not None:
        answer.is_read = found.handed_over.is_whole
        for (ledger_id, entry_id), data in found.handed_over.entries:
            answer.entry.add(ledgerId=ledger_id, entryId=entry_id, data=data)
    if found.cursor is not None:
        _set(answer.cursor, found.cursor)
        answer.backlog = found.backlog
    return answer


def _set(place: pb.MessageIdData, position: Position) -> None:
    """A cursor may be before a ledger's first entry: -1 is sent as 2^64 - 1."""
    place.ledgerId = position.ledger_id & 0xFFFF_FFFF_FFFF_FFFF
    place.entryId = position.entry_id & 0xFFFF_FFFF_FFFF_FFFF
