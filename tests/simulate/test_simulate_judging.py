"""Judgement from topics alone: each broken promise is a sentence that names its messages."""

from pybroker.simulation.declaring import OutputSpec, Record
from pybroker.simulation.judging import Account, SeenTransaction, judge, shown

ORDERS = "orders"
INVOICES = OutputSpec("invoices", None, True)


def records(topic, *values, keys=None):
    return [
        Record(topic, value.encode(), keys or "k", {}, (1, place, -1), f"{topic}-in-full")
        for place, value in enumerate(values)
    ]


def found(inputs, outputs, rules=(INVOICES,), left=(), transactions=()):
    """The violations; `left`: positions of inputs that `billing` has not acknowledged."""
    account = Account(
        {ORDERS: records(ORDERS, *inputs)},
        {topic: records(topic, *values) for topic, values in outputs.items()},
        rules,
        {(ORDERS, "billing"): frozenset((1, place, -1) for place in left)},
        transactions,
        240.0,
    )
    return [str(violation) for violation in judge(account)]


def test_one_output_for_each_input_is_what_is_owed():
    assert found(["a-1", "a-12"], {"invoices": ["of a-1", "of a-12"]}) == []


def test_a_loss_says_whether_it_can_come_again():
    assert found(["a-1", "a-2"], {"invoices": ["of a-1"]}) == [
        "LOST: nothing of 'a-2' is in invoices; it is acknowledged on billing, so it will not "
        "be redelivered"
    ]
    assert found(["a-1", "a-2"], {"invoices": ["of a-1"]}, left=[1]) == [
        "LOST: nothing of 'a-2' is in invoices; 240 s after the faults billing has not "
        "acknowledged it"
    ]


def test_a_number_is_not_found_in_a_longer_one():
    (text,) = found(["a-1", "a-12"], {"invoices": ["of a-12"]})
    assert text.startswith("LOST: nothing of 'a-1' ")


def test_an_input_within_a_word_is_found_where_none_is_a_word_of_its_own():
    assert found(["a-1", "a-12"], {"invoices": ["xa-1", "xa-12"]}) == []
    (text,) = found(["a-1", "a-12"], {"invoices": ["xa-12"]})
    assert text.startswith("LOST: nothing of 'a-1' ")
    assert found(["a-1"], {"invoices": ["xa-1", "xa-1"]}) == [
        "DOUBLED: 'a-1' was processed again: invoices has 'xa-1' 2 times"
    ]


def test_what_stands_twice_is_doubled():
    assert found(["a", "b"], {"invoices": ["of a", "of b", "of a"]}) == [
        "DOUBLED: 'a' was processed again: invoices has 'of a' 2 times"
    ]


def test_an_input_that_stands_twice_is_owed_twice():
    assert found(["a", "a"], {"invoices": ["of a", "of a"]}) == []
    (text,) = found(["a", "a"], {"invoices": ["of a"]})
    assert text.startswith("PARTIAL: 'a' is visible in part in invoices")


def test_one_of_two_outputs_is_a_part():
    rules = (INVOICES, OutputSpec("ledger", None, True))
    assert found(["a"], {"invoices": ["of a"], "ledger": []}, rules) == [
        "PARTIAL: 'a' is visible in part: in invoices, not in ledger; it is acknowledged on "
        "billing, so it will not be redelivered"
    ]


def test_an_output_whose_input_comes_again_is_torn():
    assert found(["a"], {"invoices": ["of a"]}, left=[0]) == [
        "TORN ACKNOWLEDGEMENT: invoices has what 'a' makes, but billing has not acknowledged it "
        "240 s after the faults: it is redelivered"
    ]


def test_messages_of_one_key_keep_their_order():
    assert found(["a", "b"], {"invoices": ["of b", "of a"]}) == [
        "ORDER: 'b' follows 'a' of key k, but is before it in invoices"
    ]
    assert (
        found(["a", "b"], {"invoices": ["of b", "of a"]}, (OutputSpec("invoices", None, False),))
        == []
    )


def test_what_is_expected_is_compared_message_by_message():
    def expect(order):
        return [] if order == b"small" else [b"head " + order, "foot " + order.decode()]

    rules = (OutputSpec("invoices", expect, True),)
    good = ["head a", "foot a", "head b", "foot b"]
    assert found(["a", "small", "b"], {"invoices": good}, rules) == []
    (part,) = found(["a", "small", "b"], {"invoices": good[:3]}, rules)
    assert part.startswith("PARTIAL: 'b' is visible in part in invoices")
    assert found(["a", "small"], {"invoices": ["head a", "foot a", "foot a", "x"]}, rules) == [
        "DOUBLED: 'a' was processed again: invoices has 'head a' 1 times, 'foot a' 2 times",
        "UNEXPECTED: 'x' in invoices is not what `expect` returns for any input",
    ]


def test_a_transaction_shows_whole_or_not_at_all():
    def transaction(committed, *places):
        stored = [("invoices-in-full", (1, place, -1), f"'m{place}'") for place in places]
        return SeenTransaction("(1,2)", committed, stored)

    outputs = {"invoices": ["of a"]}
    (text,) = found(["a"], outputs, transactions=[transaction(None, 0, 5)])
    assert text == "PARTIAL: transaction (1,2): 'm0' of it is visible, 'm5' is not"
    (text,) = found(["a"], outputs, transactions=[transaction(True, 5)])
    assert text == "PARTIAL: transaction (1,2): nothing of it is visible, 'm5' is not"
    (text,) = found(["a"], outputs, transactions=[transaction(False, 0)])
    assert text == "PARTIAL: transaction (1,2) was aborted, but 'm0' is visible"
    assert found(["a"], outputs, transactions=[transaction(True, 0), transaction(None, 7)]) == []


def test_very_many_violations_of_a_kind_are_counted():
    texts = found([f"a-{n}" for n in range(50)], {"invoices": []})
    assert len(texts) == 21
    assert texts[-1] == "LOST: and 30 more like these"


def test_a_message_is_shown_short_and_printable():
    assert shown(b"\xff\x1b[31m\n") == r"'\\xff\x1b[31m\n'"
    assert len(shown(b"x" * 10_000)) == 60
