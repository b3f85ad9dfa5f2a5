"""The checker names each kind of broken promise, and reports nothing when all are kept."""

import pytest
from checks.history import History, Outcome, Read, Sent
from checks.promises import never_consumed, violations


def send(history, value, outcome=Outcome.DONE, txn=None, topic="t", **more):
    producer, _, number = value.partition("/")
    sent = Sent(value, topic, producer, int(number), txn=txn, **more)
    sent.outcome = outcome
    return history.send(sent)


def logs(**topics):
    return {
        topic: [Read(topic, (1, entry_id, -1), value) for entry_id, value in enumerate(values)]
        for topic, values in topics.items()
    }


def kinds(history, **topics):
    return [sentence.partition(":")[0] for sentence in violations(history, logs(**topics))]


@pytest.fixture
def history():
    return History()


def test_kept_promises_are_no_violation(history):
    for number in range(3):
        send(history, f"a/{number}")
    txn = history.begin("txn")
    send(history, "b/0", txn=txn)
    txn.commit = Outcome.DONE
    assert kinds(history, t=["a/0", "b/0", "a/1", "a/2"]) == []


def test_an_acknowledged_message_that_is_gone_is_a_loss(history):
    send(history, "a/0")
    assert kinds(history, t=[]) == ["LOSS"]


def test_an_unanswered_send_may_be_there_or_not(history):
    send(history, "a/0", Outcome.UNKNOWN)
    assert kinds(history, t=[]) == kinds(history, t=["a/0"]) == []


def test_a_committed_transaction_s_message_that_is_gone_is_a_loss(history):
    txn = history.begin("txn")
    send(history, "a/0", txn=txn)
    txn.commit = Outcome.DONE
    assert kinds(history, t=[]) == ["LOSS"]


@pytest.mark.parametrize("abort", [None, Outcome.DONE, Outcome.UNKNOWN])
def test_what_was_never_committed_must_not_be_visible(history, abort):
    txn = history.begin("txn")
    send(history, "a/0", txn=txn)
    txn.abort = abort
    assert kinds(history, t=["a/0"]) == ["ABORTED READ"]


def test_an_unknown_end_shows_all_or_nothing(history):
    txn = history.begin("txn")
    send(history, "a/0", txn=txn)
    send(history, "b/0", txn=txn, topic="u")
    txn.commit = Outcome.UNKNOWN
    assert kinds(history, t=["a/0"], u=["b/0"]) == kinds(history, t=[], u=[]) == []
    assert kinds(history, t=["a/0"], u=[]) == ["PARTIAL TRANSACTION"]


def test_a_duplicate_counts_under_deduplication(history):
    send(history, "a/0", deduplicated=True)
    send(history, "b/0")
    assert kinds(history, t=["b/0", "b/0", "a/0"]) == []
    assert kinds(history, t=["b/0", "a/0", "a/0"]) == ["DUPLICATE"]


def test_a_producer_s_messages_stay_in_order(history):
    send(history, "a/0")
    send(history, "a/1")
    assert kinds(history, t=["a/1", "a/0"]) == ["ORDER"]
    assert kinds(history, t=["a/0", "a/1", "a/0", "a/1"]) == []


def test_a_read_that_the_log_does_not_confirm_is_named(history):
    send(history, "a/0", Outcome.UNKNOWN)
    consumer = history.receiver("consumer", "subscription")
    consumer.reads.append(Read("t", (1, 0, -1), "a/0"))
    assert kinds(history, t=["a/0"]) == []
    assert kinds(history, t=[]) == ["UNCONFIRMED READ"]


def test_a_reader_sees_the_log_from_its_start_without_a_gap(history):
    for number in range(3):
        send(history, f"a/{number}")
    log = logs(t=["a/0", "a/1", "a/2"])
    reader = history.receiver("reader")
    reader.reads.extend(log["t"][:2])
    assert violations(history, log) == []
    del reader.reads[0]
    assert kinds(history, t=["a/0", "a/1", "a/2"]) == ["SKIPPED"]


def test_two_committed_transactions_do_not_acknowledge_one_message(history):
    for name in ("one", "two"):
        txn = history.begin(name)
        txn.acknowledged.append(("subscription", Read("t", (1, 0, -1), "a/0")))
        txn.commit = Outcome.DONE
    assert kinds(history, t=[]) == ["ACKNOWLEDGED TWICE"]


def test_a_transaction_does_not_both_commit_and_abort(history):
    txn = history.begin("txn")
    txn.commit = txn.abort = Outcome.DONE
    assert kinds(history) == ["CONTRADICTION"]


def test_a_message_that_a_subscription_never_got_is_named(history):
    send(history, "a/0")
    log = logs(t=["a/0"])
    assert len(never_consumed(history, "subscription", log.values())) == 1
    consumer = history.receiver("consumer", "subscription")
    consumer.reads.extend(log["t"])
    assert never_consumed(history, "subscription", log.values()) == []
