"""Handmade histories of transactions: each anomaly is named, with its evidence, and no other is.

A history is built in the order of events, so its turns tell what ended first.
"""

import pytest
from checks.anomalies import anomalies
from checks.dependencies import Edge, shortest_cycle
from checks.history import History, Outcome, Read, Sent

from pybroker.base.names import TxnId


def sends(history, value, txn=None, *, topic="t", session=None, answered=True):
    producer, _, number = value.partition("/")
    sent = Sent(value, topic, producer, int(number), txn=txn, session=session)
    sent.asked = history.turn()
    history.send(sent)
    if answered:
        receives_receipt(history, sent)
    return sent


def receives_receipt(history, sent):
    sent.outcome, sent.answered = Outcome.DONE, history.turn()


def asks(history, *txns):
    for txn in txns:
        txn.commit, txn.commit_asked = Outcome.UNKNOWN, history.turn()


def hears(history, *txns):
    for txn in txns:
        txn.commit, txn.commit_heard = Outcome.DONE, history.turn()


def commits(history, *txns):
    for txn in txns:
        asks(history, txn)
        hears(history, txn)


def begins(history, *names, **more):
    txns = [history.begin(name) for name in names]
    for txn in txns:
        for name, value in more.items():
            setattr(txn, name, value)
    return txns if len(txns) > 1 else txns[0]


def at(log, value):
    topic, values = log
    return Read(topic, (1, values.index(value), -1), value)


def logs(**topics):
    return {
        topic: [Read(topic, (1, entry_id, -1), value) for entry_id, value in enumerate(values)]
        for topic, values in topics.items()
    }


def found(history, **topics):
    return anomalies(history, logs(**topics))


def kinds(history, **topics):
    return [sentence.partition(":")[0] for sentence in found(history, **topics)]


@pytest.fixture
def history():
    return History()


@pytest.fixture
def in_commit_order():
    history = History()
    for topic in ("t", "u"):
        history.in_commit_order(topic)
    return history


@pytest.fixture
def pair(in_commit_order):
    """Two transactions, open at the same time, on two topics."""
    history = in_commit_order
    a, b = begins(history, "A", "B")
    for number, topic in enumerate("tu"):
        sends(history, f"a/{number}", a, topic=topic)
        sends(history, f"b/{number}", b, topic=topic)
    return history, a, b


# --- no anomaly


def test_nothing_happened(history):
    assert found(history) == []


def test_transactions_interleave_where_topics_keep_the_order_of_their_logs(history):
    a, b = begins(history, "A", "B")
    for value, txn in (("a/0", a), ("b/0", b), ("a/1", a)):
        sends(history, value, txn)
    commits(history, b, a)
    assert found(history, t=["a/0", "b/0", "a/1"]) == []


def test_topics_that_agree_on_the_order_of_commits_are_clean(pair):
    history, a, b = pair
    asks(history, a, b)
    hears(history, a, b)
    assert found(history, t=["a/0", "b/0"], u=["a/1", "b/1"]) == []
    assert found(history, t=["b/0", "a/0"], u=["b/1", "a/1"]) == []


def test_consuming_what_another_one_has_committed_is_clean(history):
    a = begins(history, "A")
    sends(history, "a/0", a)
    commits(history, a)
    b = begins(history, "B")
    b.acknowledged.append(("subscription", at(("t", ["a/0"]), "a/0")))
    sends(history, "b/0", b, topic="u")
    commits(history, b)
    assert found(history, t=["a/0"], u=["b/0"]) == []


def test_what_was_sent_at_the_same_time_stands_in_any_order(history):
    first, second = sends(history, "a/0", answered=False), sends(history, "b/0", answered=False)
    receives_receipt(history, first)
    receives_receipt(history, second)
    assert found(history, t=["a/0", "b/0"]) == found(history, t=["b/0", "a/0"]) == []


def test_a_message_may_come_twice_without_deduplication(history):
    sends(history, "a/0")
    sends(history, "b/0")
    assert found(history, t=["a/0", "b/0", "a/0"]) == []


def test_unstamped_transactions_are_not_judged_by_time(in_commit_order):
    history = in_commit_order
    for name in ("A", "B"):
        txn = history.begin(name)
        history.send(Sent(f"{name}/0", "t", name, 0, txn=txn, outcome=Outcome.DONE))
        txn.commit = Outcome.DONE
    assert found(history, t=["B/0", "A/0"]) == []


# --- lost, doubled, aborted, partial


def test_a_transaction_of_which_a_part_is_gone_is_partial_or_lost(history):
    a = begins(history, "A")
    sends(history, "a/0", a)
    sends(history, "a/1", a, topic="u")
    asks(history, a)
    assert kinds(history, t=["a/0"], u=[]) == ["PARTIAL TRANSACTION"]
    assert found(history, t=[], u=[]) == []
    hears(history, a)
    assert "LOSS" in kinds(history, t=["a/0"], u=[])


def test_transactions_of_one_decision_show_all_or_none(history):
    members = begins(history, "A", "B", group="G")
    for name, member in zip("ab", members, strict=True):
        sends(history, f"{name}/0", member)
    asks(history, *members)
    assert found(history, t=["a/0", "b/0"]) == found(history, t=[]) == []
    assert kinds(history, t=["b/0"]) == ["PARTIAL TRANSACTION"]


def test_what_was_aborted_and_can_be_read_is_named(history):
    a = begins(history, "A")
    sends(history, "a/0", a)
    a.abort = Outcome.DONE
    assert kinds(history, t=["a/0"]) == ["ABORTED READ"]


def test_a_committed_transaction_consumes_nothing_of_an_aborted_one(history):
    a, b = begins(history, "A", "B")
    sends(history, "a/0", a)
    b.acknowledged.append(("subscription", at(("t", ["a/0"]), "a/0")))
    a.abort = Outcome.DONE
    commits(history, b)
    assert found(history, t=[]) == [
        "ABORTED READ: B has committed and consumed a/0 of A, which was aborted"
    ]
    history.receiver("consumer", "subscription", committed_only=False)
    assert found(history, t=[]) == []


def test_a_message_that_two_transactions_consumed_is_named(history):
    sends(history, "a/0")
    for txn in begins(history, "A", "B"):
        txn.acknowledged.append(("subscription", at(("t", ["a/0"]), "a/0")))
        commits(history, txn)
    assert kinds(history, t=["a/0"]) == ["ACKNOWLEDGED TWICE"]


# --- early reads


def test_a_message_that_was_handed_out_before_its_commit_is_named(history):
    a = begins(history, "A")
    sends(history, "a/0", a)
    receiver = history.receiver("reader")
    history.hand(receiver, at(("t", ["a/0"]), "a/0"))
    commits(history, a)
    assert kinds(history, t=["a/0"]) == ["UNCOMMITTED READ"]
    receiver.committed_only = False
    assert found(history, t=["a/0"]) == []


def test_a_message_that_is_handed_out_while_its_commit_is_under_way_is_clean(history):
    a = begins(history, "A")
    sends(history, "a/0", a)
    asks(history, a)
    history.hand(history.receiver("reader"), at(("t", ["a/0"]), "a/0"))
    hears(history, a)
    assert found(history, t=["a/0"]) == []


def test_two_transactions_that_consumed_each_other_s_messages_are_a_circle(history):
    a, b = begins(history, "A", "B")
    sends(history, "a/0", a)
    sends(history, "b/0", b)
    a.acknowledged.append(("subscription", at(("t", ["b/0"]), "b/0")))
    b.acknowledged.append(("subscription", at(("t", ["a/0"]), "a/0")))
    asks(history, a, b)
    hears(history, a, b)
    assert kinds(history, t=["a/0", "b/0"]) == ["CIRCULAR READ"]


def test_to_consume_what_is_committed_only_later_is_a_circle(history):
    a, b = begins(history, "A", "B")
    sends(history, "a/0", a)
    b.acknowledged.append(("subscription", at(("t", ["a/0"]), "a/0")))
    commits(history, b, a)
    (sentence,) = found(history, t=["a/0"])
    assert sentence.startswith("CIRCULAR READ: ")
    assert "(reads: the latter acknowledged a/0 on subscription)" in sentence
    assert "B before A (then: " in sentence


# --- order


def test_a_producer_s_messages_that_change_places_are_named(history):
    first, second = sends(history, "a/0", answered=False), sends(history, "a/1", answered=False)
    receives_receipt(history, first)
    receives_receipt(history, second)
    assert kinds(history, t=["a/1", "a/0"]) == ["ORDER"]


def test_what_was_answered_before_another_was_sent_stands_before_it(history):
    sends(history, "a/0")
    sends(history, "b/0")
    assert kinds(history, t=["b/0", "a/0"]) == ["ORDER"]


def test_topics_that_disagree_on_the_order_of_commits_are_named(pair):
    history, a, b = pair
    asks(history, a, b)
    hears(history, a, b)
    (sentence,) = found(history, t=["a/0", "b/0"], u=["b/1", "a/1"])
    assert sentence.startswith("COMMIT ORDER: ")
    assert "A before B (log: a/0 before b/0, t)" in sentence
    assert "B before A (log: b/1 before a/1, u)" in sentence


def test_a_topic_that_was_told_again_shows_it_when_it_hears_of_it(pair):
    """For instance, it was being unloaded, and another transaction overtook."""
    history, a, b = pair
    a.txn_id, b.txn_id = TxnId(0, 1), TxnId(0, 2)
    history.told_again.add((a.txn_id, "u"))
    asks(history, a, b)
    hears(history, a, b)
    assert found(history, t=["a/0", "b/0"], u=["b/1", "a/1"]) == []
    assert kinds(history, t=["b/0", "a/0"], u=["a/1", "b/1"]) == ["COMMIT ORDER"]


def test_a_topic_that_was_told_again_heard_of_it_before_the_answer(pair):
    history, a, b = pair
    a.txn_id, b.txn_id = TxnId(0, 1), TxnId(0, 2)
    history.told_again.add((a.txn_id, "u"))
    commits(history, a, b)
    assert kinds(history, t=["a/0", "b/0"], u=["b/1", "a/1"]) == ["COMMIT ORDER"]


def test_topics_need_not_agree_on_transactions_of_several_coordinators(pair):
    history, a, b = pair
    a.txn_id, b.txn_id = TxnId(0, 1), TxnId(1, 1)
    asks(history, a, b)
    hears(history, a, b)
    assert found(history, t=["a/0", "b/0"], u=["b/1", "a/1"]) == []


def test_a_transaction_that_is_split_by_another_is_named(in_commit_order):
    history = in_commit_order
    a, b = begins(history, "A", "B")
    sends(history, "a/0", a)
    sends(history, "b/0", b)
    sends(history, "a/1", a)
    asks(history, a, b)
    hears(history, a, b)
    assert found(history, t=["b/0", "a/0", "a/1"]) == []
    assert kinds(history, t=["a/0", "b/0", "a/1"]) == ["COMMIT ORDER"]


def test_a_plain_message_may_come_between_the_pieces_of_a_large_copy(in_commit_order):
    history = in_commit_order
    a = begins(history, "A")
    sends(history, "a/0", a)
    sends(history, "a/1", a)
    asks(history, a)
    sends(history, "p/0")
    hears(history, a)
    sends(history, "p/1")
    assert found(history, t=["a/0", "p/0", "a/1", "p/1"]) == []
    assert kinds(history, t=["a/0", "p/0", "p/1", "a/1"]) == ["COMMIT ORDER"]


def test_a_commit_that_was_over_before_another_was_asked_for_comes_first(pair):
    history, a, b = pair
    commits(history, a, b)
    assert found(history, t=["a/0", "b/0"], u=["a/1", "b/1"]) == []
    assert kinds(history, t=["b/0", "a/0"], u=["b/1", "a/1"]) == ["COMMIT ORDER"]


def test_a_plain_message_stands_where_it_was_sent_among_the_commits(in_commit_order):
    history = in_commit_order
    a = begins(history, "A")
    sends(history, "a/0", a)
    sends(history, "p/0")
    commits(history, a)
    assert found(history, t=["p/0", "a/0"]) == []
    assert kinds(history, t=["a/0", "p/0"]) == ["COMMIT ORDER"]


def test_an_order_that_changes_after_a_reader_has_seen_it_is_named(pair):
    history, a, b = pair
    asks(history, a, b)
    hears(history, a, b)
    reader = history.receiver("reader")
    for value in ("a/0", "b/0"):
        history.hand(reader, at(("t", ["a/0", "b/0"]), value))
    (sentence,) = found(history, t=["b/0", "a/0"], u=["b/1", "a/1"])
    assert "(seen: a/0 before b/0, reader on t)" in sentence


def test_in_what_order_one_decision_shows_itself_is_free(in_commit_order):
    history = in_commit_order
    members = begins(history, "A", "B", group="G")
    for name, member in zip("ab", members, strict=True):
        sends(history, f"{name}/0", member)
        sends(history, f"{name}/1", member, topic="u")
    asks(history, *members)
    hears(history, *members)
    assert found(history, t=["a/0", "b/0"], u=["b/1", "a/1"]) == []
    c = begins(history, "C")
    sends(history, "c/0", c)
    commits(history, c)
    assert kinds(history, t=["c/0", "a/0", "b/0"], u=["b/1", "a/1"]) == ["COMMIT ORDER"]


def test_a_circle_of_three_over_three_topics_is_found(in_commit_order):
    history = in_commit_order
    history.in_commit_order("v")
    txns = dict(zip("abc", begins(history, "A", "B", "C"), strict=True))
    numbers = dict.fromkeys("abc", -1)
    rows = {"t": "ab", "u": "bc", "v": "ca"}
    shown = {}
    for topic, row in rows.items():
        for name in row:
            numbers[name] += 1
            sends(history, f"{name}/{numbers[name]}", txns[name], topic=topic)
            shown.setdefault(topic, []).append(f"{name}/{numbers[name]}")
    asks(history, *txns.values())
    hears(history, *txns.values())
    (sentence,) = found(history, **shown)
    assert sentence.count(" before ") == 6


def test_only_while_the_policy_holds_commits_decide_the_order(history):
    a, b = begins(history, "A", "B")
    sends(history, "a/0", a)
    sends(history, "b/0", b)
    sends(history, "a/1", a)
    commits(history, a, b)
    since = history.turn()
    history.in_commit_order("t", since, None)
    assert found(history, t=["a/0", "b/0", "a/1"]) == []
    c, d = begins(history, "C", "D")
    for value, txn in (("c/0", c), ("d/0", d), ("c/1", c)):
        sends(history, value, txn)
    commits(history, c, d)
    log = ["a/0", "b/0", "a/1", "c/0", "d/0", "c/1"]
    assert kinds(history, t=log) == ["COMMIT ORDER"]
    history.commit_ordered.clear()
    history.in_commit_order("t", None, since)
    assert kinds(history, t=log) == ["COMMIT ORDER"]
    assert kinds(history, t=["a/0", "a/1", "b/0", *log[3:]]) == []


# --- fenced


def test_what_a_fenced_session_sent_is_named_where_it_can_be_read(history):
    older = history.take_over("id")
    sends(history, "a/0", session=older)
    newer = history.take_over("id")
    sends(history, "a/1", session=older)
    assert found(history, t=["a/0"]) == ["LOSS: a/1 on t was acknowledged and is not there"]
    (sentence,) = found(history, t=["a/0", "a/1"])
    assert sentence.startswith("FENCED WRITE: a/1, sent at ")
    sends(history, "a/2", session=newer)
    assert kinds(history, t=["a/0", "a/1", "a/2"]) == ["FENCED WRITE"]


def test_a_commit_that_a_fenced_session_asked_for_is_named(history):
    a = begins(history, "A", session=history.take_over("id"))
    sends(history, "a/0", a)
    history.take_over("id")
    commits(history, a)
    assert kinds(history, t=["a/0"]) == ["FENCED WRITE"]


def test_a_commit_that_was_asked_for_before_the_fence_may_be_heard_behind_it(history):
    a = begins(history, "A", session=history.take_over("id"))
    sends(history, "a/0", a)
    asks(history, a)
    newer = history.take_over("id")
    hears(history, a)
    b = begins(history, "B", session=newer)
    sends(history, "b/0", b)
    commits(history, b)
    assert found(history, t=["a/0", "b/0"]) == []
    assert "FENCED WRITE" in kinds(history, t=["b/0", "a/0"])


def test_sessions_of_different_ids_have_nothing_to_do_with_one_another(history):
    sessions = [history.take_over(name) for name in ("one", "other")]
    for value, session in zip(("a/0", "b/0"), sessions, strict=True):
        sends(history, value, session=session)
    assert found(history, t=["a/0", "b/0"]) == []
    assert [session.fenced for session in sessions] == [None, None]


# --- the graph


def edges(*pairs):
    nodes = {name: Sent(name, "t", name, 0) for pair in pairs for name in pair}
    return [Edge(nodes[one], nodes[other], "log", "") for one, other in pairs]


def test_the_shortest_cycle_is_found():
    graph = edges("ab", "bc", "cd", "da", "ce", "eb", "xa", "dx")
    assert [edge.before.value for edge in shortest_cycle(graph)] == ["b", "c", "e"]


def test_a_graph_without_a_cycle_has_none():
    assert shortest_cycle(edges("ab", "bc", "ac", "aa")) == []
