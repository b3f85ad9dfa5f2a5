"""How eos-check parses the commands of a connection."""

from typing import Any

from pybroker.eos_check.connection_trace import ConnectionTrace, Seen
from pybroker.eos_check.faults import Passing, Phase, Step
from pybroker.wire import pulsar_api_pb2 as pb

T = pb.BaseCommand
DEFAULT = "persistent://public/default/"


def command(kind: int, name: str, **fields: Any) -> pb.BaseCommand:
    made = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(made, name)
    for field, value in fields.items():
        if isinstance(value, dict):
            getattr(body, field).CopyFrom(pb.MessageIdData(**value))
        elif isinstance(value, list):
            getattr(body, field).extend(value)
        else:
            setattr(body, field, value)
    return made


def connected() -> ConnectionTrace:
    trace = ConnectionTrace()
    trace.from_client(
        command(T.PRODUCER, "producer", topic=f"{DEFAULT}out", producer_id=1, request_id=1)
    )
    trace.from_client(
        command(
            T.SUBSCRIBE,
            "subscribe",
            topic=f"{DEFAULT}in",
            subscription="s",
            subType=0,
            consumer_id=1,
            request_id=2,
        )
    )
    return trace


def passed(seen: Seen) -> tuple[str, str, Phase] | None:
    if seen.passing is None:
        return None
    return seen.passing.step.command, seen.passing.step.topic, seen.passing.phase


def test_a_send_is_passed_twice():
    trace = connected()
    send = command(T.SEND, "send", producer_id=1, sequence_id=7)
    assert passed(trace.from_client(send)) == ("SEND", "out", Phase.BEFORE)
    at = {"ledgerId": 3, "entryId": 4}
    receipt = command(T.SEND_RECEIPT, "send_receipt", producer_id=1, sequence_id=7, message_id=at)
    seen = trace.from_broker(receipt)
    assert passed(seen) == ("SEND", "out", Phase.AFTER)
    assert seen.event is not None
    assert seen.event.positions == ((3, 4),)
    assert passed(trace.from_broker(receipt)) is None  # no event waits for it any more


def test_an_acknowledgement_without_a_request_has_no_answer():
    at = pb.MessageIdData(ledgerId=1, entryId=2)
    seen = connected().from_client(
        command(T.ACK, "ack", consumer_id=1, ack_type=0, message_id=[at])
    )
    assert not seen.is_answered
    assert passed(seen) == ("ACK", "in", Phase.BEFORE)


def test_a_commit_and_an_abort_are_different_steps():
    steps = []
    for action in (pb.COMMIT, pb.ABORT):
        end = command(
            T.END_TXN,
            "endTxn",
            request_id=9,
            txn_action=action,
            txnid_least_bits=1,
            txnid_most_bits=0,
        )
        steps.append(passed(connected().from_client(end)))
    assert steps == [("COMMIT", "", Phase.BEFORE), ("ABORT", "", Phase.BEFORE)]


def test_the_answer_to_new_txn_names_the_transaction():
    trace = connected()
    trace.from_client(command(T.NEW_TXN, "newTxn", request_id=5))
    answer = command(
        T.NEW_TXN_RESPONSE, "newTxnResponse", request_id=5, txnid_least_bits=8, txnid_most_bits=2
    )
    event = trace.from_broker(answer).event
    assert event is not None
    assert event.txn == (2, 8)


def test_a_refusal_is_told():
    trace = connected()
    trace.from_client(command(T.NEW_TXN, "newTxn", request_id=5))
    refused = command(T.ERROR, "error", request_id=5, error=pb.UnknownError, message="not today")
    event = trace.from_broker(refused).event
    assert event is not None
    assert event.error == "not today"


def test_questions_about_topics_are_no_steps_unless_they_change_something():
    asks = command(T.ASK_TOPICS, "askTopics", request_id=5, subscription="s")
    assert passed(connected().from_client(asks)) is None
    creates = command(T.ASK_TOPICS, "askTopics", request_id=5, initial_position=1)
    assert connected().from_client(creates).passing == Passing(Step("ASK_TOPICS"), Phase.BEFORE)


def test_a_producer_id_that_is_used_again_means_the_new_topic():
    trace = connected()
    trace.from_client(command(T.PRODUCER, "producer", topic="new", producer_id=1, request_id=3))
    send = trace.from_client(command(T.SEND, "send", producer_id=1, sequence_id=0))
    assert passed(send) == ("SEND", "new", Phase.BEFORE)
