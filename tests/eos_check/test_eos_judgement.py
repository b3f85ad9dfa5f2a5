"""eos-check's judgement of the messages on the output topics."""

import re
import sys

from pybroker.eos_check.judgement import Promise, disorder, judge, judge_by_command, same
from pybroker.eos_check.settings import Input
from pybroker.eos_check.topics import Output


def out(number: int, topic: str = "out", key: str = "k", more: str = "") -> Output:
    return Output(topic, key, f"invoice eos-{number:06d}{more}".encode())


EXPECTED = (out(1), out(2), out(3))


def promises(*found: Output, expected: tuple[Output, ...] = EXPECTED) -> list[Promise]:
    return [breach.promise for breach in judge(found, expected, None)]


def test_the_same_messages_keep_all_promises():
    assert promises(out(3), out(1), out(2)) == []


def test_a_missing_message_is_lost():
    (breach,) = judge((out(1), out(3)), EXPECTED, None)
    assert breach.promise is Promise.LOST
    assert breach.ids == ("eos-000002",)
    assert "invoice eos-000002 on out is missing" in breach.text


def test_a_message_twice_is_doubled():
    (breach,) = judge((*EXPECTED, out(2)), EXPECTED, None)
    assert breach.promise is Promise.DOUBLED
    assert "2 times instead of 1" in breach.text


def test_half_of_what_an_input_leads_to_is_partial():
    expected = (out(1, "debits"), out(1, "credits"), out(2, "debits"), out(2, "credits"))
    (breach,) = judge(expected[:3], expected, None)
    assert breach.promise is Promise.PARTIAL
    assert breach.ids == ("eos-000002",)


def test_all_of_what_an_input_leads_to_is_lost():
    expected = (out(1, "debits"), out(1, "credits"), out(2, "debits"), out(2, "credits"))
    assert promises(*expected[:2], expected=expected) == [Promise.LOST, Promise.LOST]


def test_what_no_run_puts_out_is_unexpected():
    assert promises(*EXPECTED, out(9)) == [Promise.UNEXPECTED]


def test_the_worst_comes_first():
    assert promises(out(1), out(1), out(3)) == [Promise.LOST, Promise.DOUBLED]


def test_an_identity_leaves_the_rest_of_a_value_out():
    identity = re.compile(rb"eos-\d+")
    found = [out(number, more=" at 12:00", key="other") for number in (1, 2, 3)]
    assert same(found, EXPECTED, identity)
    assert not same(found, EXPECTED, None)


def test_the_first_group_of_an_identity_is_compared():
    identity = re.compile(rb"order=(\d+)")
    one, other = Output("t", "", b"order=7 a"), Output("t", "", b"order=7 b")
    assert same([one], [other], identity)


def test_what_an_identity_does_not_find_is_compared_whole():
    identity = re.compile(rb"order=(\d+)")
    assert not same([Output("t", "", b"a")], [Output("t", "", b"b")], identity)


def test_the_order_of_a_key_is_that_of_the_first_copies():
    assert disorder((out(1), out(2), out(1), out(3)), EXPECTED, None) == []
    (breach,) = disorder((out(2), out(1), out(3)), EXPECTED, None)
    assert breach.promise is Promise.OUT_OF_ORDER
    assert breach.ids == ("eos-000002", "eos-000001")


def test_messages_of_different_keys_have_no_order():
    expected = (out(1, key="a"), out(2, key="b"))
    assert disorder(expected[::-1], expected, None) == []


def test_messages_without_a_key_have_no_order():
    expected = (out(1, key=""), out(2, key=""))
    assert disorder(expected[::-1], expected, None) == []


COUNTS = """
import json, sys
told = json.load(sys.stdin)
if len(told["input"]) != len(told["output"]):
    sys.exit("the sums differ")
"""


def test_a_judge_of_ones_own_reads_json_and_says_why():
    command = [sys.executable, "-c", COUNTS]
    inputs = [Input("eos-000001", "k", b"one")]
    assert judge_by_command(command, [out(1)], inputs) == []
    (breach,) = judge_by_command(command, [], inputs)
    assert (breach.promise, breach.text) == (Promise.REFUSED, "the sums differ")
