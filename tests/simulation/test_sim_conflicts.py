"""What excuses a TransactionConflict in the simulation, and what does not."""

import pytest
from checks.conflicts import Ack, Book, Key, Life, Moment, reason_for
from checks.history import Outcome, Txn

BEGIN = Moment(0, frozenset())


def at(turn: int, *still_open: str) -> Moment:
    return Moment(turn, frozenset(still_open))


def message(number: int, index: int = -1) -> Key:
    return (1, number, index)


def life(*given: Key, name: str = "", since: Moment = BEGIN, request: int = 1) -> Life:
    new = Life(name, 0, since, [request])
    new.begin_pass(1)
    for key in given:
        new.given(key)
    return new


def committed(name: str, turn: int) -> Txn:
    return Txn(
        name, name, began=turn - 2, commit=Outcome.DONE, commit_asked=turn, commit_heard=turn
    )


def aborted(name: str, turn: int) -> Txn:
    return Txn(name, name, began=turn - 2, abort=Outcome.DONE, abort_heard=turn)


def up_to(end: Key, who: Life, txn: Txn, sent: Moment, consumed: tuple[Key, ...] = ()) -> Ack:
    return Ack(who, txn, frozenset(consumed or (end,)), end, sent)


def singly(who: Life, txn: Txn, sent: Moment, *consumed: Key) -> Ack:
    return Ack(who, txn, frozenset(consumed), None, sent)


def reason(refused: Ack, *acks: Ack, lives: tuple[Life, ...] = ()) -> str | None:
    refused.answered = Moment(refused.sent.turn + 1, refused.sent.open)
    return reason_for(refused, Book([refused.life, *lives], [*acks, refused]))


M0, M1, M2 = message(0), message(1), message(2)


def test_a_lone_client_that_stays_connected_has_no_excuse():
    only = life(M0, M1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(6, "t2")), first) is None


def test_what_a_committed_transaction_has_is_an_excuse():
    only = life(M0)
    first = up_to(M0, only, committed("t1", 5), at(4))
    again = up_to(M0, only, Txn("t2", "t2"), at(6, "t2"))
    assert reason(again, first) == "another transaction has some of it"


def test_an_aborted_transaction_is_none():
    only = life(M0)
    first = up_to(M0, only, aborted("t1", 5), at(4))
    assert reason(up_to(M0, only, Txn("t2", "t2"), at(6, "t2")), first) is None


def test_an_open_cumulative_one_is_an_excuse():
    dead, new = life(M0), life(M1)
    first = up_to(M0, dead, Txn("t1", "t1"), at(4, "t1"))
    refused = up_to(M1, new, Txn("t2", "t2"), at(6, "t1", "t2"))
    assert reason(refused, first, lives=(dead,)) == "another transaction holds cumulatively"


def test_a_new_process_does_not_inherit_what_ended_before_it():
    dead, new = life(M0), life(M1, since=at(6), request=0)
    first = up_to(M0, dead, committed("t1", 5), at(4))
    assert reason(up_to(M1, new, Txn("t2", "t2"), at(8, "t2")), first, lives=(dead,)) is None


def test_what_a_new_process_was_given_before_another_consumed_it_is_an_excuse():
    dead, new = life(M0), life(M0, M1, since=at(4, "t1"), request=0)
    first = up_to(M0, dead, committed("t1", 5), at(3))
    refused = up_to(M1, new, Txn("t2", "t2"), at(8, "t2"))
    assert reason(refused, first, lives=(dead,)) is not None


def test_what_was_given_twice_and_consumed_once_is_an_excuse_after_a_reconnect():
    only = life(M0)
    only.begin_pass(1)
    only.given(M0)
    only.given(M1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    refused = up_to(M1, only, Txn("t2", "t2"), at(6, "t2"))
    assert reason(refused, first) == "it was given twice what its own transaction has"


def test_a_reconnect_that_gave_nothing_again_is_none():
    only = life(M0)
    only.begin_pass(1)
    only.given(M1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(6, "t2")), first) is None


@pytest.mark.parametrize("lost_at_once", [1, 2])
def test_connections_that_were_lost_at_once_may_have_been_given_everything_again(lost_at_once):
    only = life(M0)
    for request in range(2, 2 + lost_at_once):
        only.subscribes(request, 1)
    only.subscribes(9, 1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    refused = up_to(M1, only, Txn("t2", "t2"), at(6, "t2"))
    assert (reason(refused, first) is not None) is (lost_at_once == 2)


def test_who_has_asked_for_redelivery_has_nothing_twice():
    only = life(M0)
    only.begin_pass(1)
    only.given(M0)
    only.forget(at(6), connected=True)
    only.begin_pass(1)
    only.given(M1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(8, "t2")), first) is None


def test_what_an_abort_gave_back_is_an_excuse_only_before_the_end():
    only = life(M0, M1, M2)
    first = singly(only, aborted("t1", 5), at(4), M1)
    assert reason(up_to(M0, only, Txn("t2", "t2"), at(6, "t2")), first) is None
    assert reason(up_to(M2, only, Txn("t2", "t2"), at(6, "t2")), first) is not None


def test_what_an_abort_gave_back_is_none_once_it_is_settled():
    only = life(M0, M1)
    first = singly(only, aborted("t1", 5), at(4), M0)
    again = singly(only, committed("t2", 7), at(6), M0)
    assert reason(up_to(M1, only, Txn("t3", "t3"), at(8, "t3")), first, again) is None


def test_what_an_abort_gave_back_is_none_if_the_transaction_has_it_itself():
    only, txn = life(M0, M1), Txn("t2", "t2")
    first = singly(only, aborted("t1", 5), at(4), M0)
    own = singly(only, txn, at(6, "t2"), M0)
    assert reason(up_to(M1, only, txn, at(8, "t2"), (M1,)), first, own) is None


def test_messages_of_a_batch_are_judged_one_by_one():
    early, late = message(0, 1), message(0, 5)
    only = life(early, late)
    first = singly(only, aborted("t1", 5), at(4), late)
    assert reason(up_to(early, only, Txn("t2", "t2"), at(6, "t2")), first) is None


def test_a_single_one_is_refused_only_for_its_message():
    only = life(M0, M1)
    first = singly(only, committed("t1", 5), at(4), M0)
    assert reason(singly(only, Txn("t2", "t2"), at(6, "t2"), M1), first) is None
    assert reason(singly(only, Txn("t2", "t2"), at(6, "t2"), M0), first) is not None


def test_a_client_that_looks_like_an_earlier_one_has_an_excuse():
    dead, new = life(M0, name="job"), life(M1, name="job", request=9)
    refused = up_to(M1, new, Txn("t2", "t2"), at(8, "t2"))
    assert reason(refused, lives=(dead,)) == "it looks like an earlier life"


def test_who_asks_for_redelivery_while_the_topic_is_unloaded_may_not_be_understood():
    only = life(M0)
    only.forget(at(6), connected=True)
    only.begin_pass(2)
    only.given(M1)
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(8, "t2"))) is not None


def test_who_asks_for_redelivery_while_it_is_away_is_understood_whatever_happens_meanwhile():
    only = life(M0)
    only.begin_pass(1)
    only.given(M0)
    only.forget(at(6), connected=False)
    only.subscribes(2, 2)
    only.begin_pass(2)
    only.given(M1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(8, "t2")), first) is None


def test_whose_first_attempt_to_subscribe_again_came_before_an_unload_may_not_be_understood():
    only = life(M0)
    only.forget(at(6), connected=False)
    only.subscribes(2, 1)
    only.subscribes(3, 2)
    only.begin_pass(2)
    only.given(M1)
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(8, "t2"))) is not None


def test_what_came_late_a_second_time_is_an_excuse_although_it_is_settled():
    only = life(M0, M1, M0)
    first = singly(only, aborted("t1", 5), at(4), M0)
    again = singly(only, committed("t2", 7), at(6), M0)
    assert reason(up_to(M1, only, Txn("t3", "t3"), at(8, "t3")), first, again) is not None


def test_who_subscribed_before_an_unload_has_an_excuse_although_it_was_given_nothing_then():
    only = Life("", 0, BEGIN, [1, 2])
    only.is_known_in(1)
    only.begin_pass(2)
    only.given(M0)
    only.given(M1)
    first = up_to(M0, only, committed("t1", 5), at(4))
    assert reason(up_to(M1, only, Txn("t2", "t2"), at(6, "t2")), first) is not None
