"""The timeline and the HTML page of a counter-example."""

from xml.etree import ElementTree

from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.drawing import drawn, page
from pybroker.eos_check.judgement import Breach, Promise
from pybroker.eos_check.run_result import RunResult
from pybroker.eos_check.settings import Input
from pybroker.eos_check.timeline import Arrow, as_text, rows
from pybroker.eos_check.topics import Output

HOSTILE = "</text></svg><script>alert(1)</script>&\x1b[2J\x00"


def result(*events: Event) -> RunResult:
    told = RunResult(())
    told.inputs = [
        (Input("eos-000001", "k", b"one"), (1, 0)),
        (Input("eos-000002", "k", b""), (1, 1)),
    ]
    told.outputs = (Output("out", "k", b"invoice eos-000001 " + HOSTILE.encode(), (5, 0)),)
    told.events = list(events)
    return told


def test_messages_are_named_by_what_they_are():
    told = rows(
        result(
            Event("MESSAGE", "in", positions=((1, 0),)),
            Event("SEND", "out"),
            Event("SEND", "out", answer=True, positions=((5, 0),)),
            Event("SEND", "out", answer=True, positions=((5, 1),)),
            Event("ACK", "in", positions=((1, 0), (1, 1))),
        ),
        [],
    )
    texts = [row.text for row in told]
    assert texts[0] == "MESSAGE in eos-000001"
    assert texts[2].startswith("RECEIPT out invoice eos-000001")
    assert texts[3] == "RECEIPT out 5:1, which no reader sees"
    assert texts[4] == "ACK in eos-000001, eos-000002"
    assert [row.arrow for row in told[:2]] == [Arrow.TO_PIPELINE, Arrow.TO_BROKER]


def test_what_concerns_a_wrong_message_is_marked():
    events = (Event("MESSAGE", "in", positions=((1, at),)) for at in (0, 1))
    told = rows(result(*events), [Breach(Promise.LOST, "", ("eos-000002",))])
    assert [row.concerned for row in told] == [False, True]
    assert as_text(told).splitlines()[1].startswith("  0.000 s * ◀──")


def test_a_long_story_says_what_it_leaves_out():
    events = [Event("FLOW", "in") for _ in range(5000)]
    events[2500] = Event("FAULT", note="pipeline killed")
    told = rows(result(*events), [])
    assert len(told) < 50
    assert [row.text for row in told if row.text.startswith("…")] == ["… 2495 more", "… 2494 more"]
    assert "pipeline killed" in as_text(told)


def test_a_story_with_many_wrong_messages_stays_short():
    events = [Event("MESSAGE", "in", positions=((1, 0),)) for _ in range(5000)]
    told = rows(result(*events), [Breach(Promise.LOST, "", ("eos-000001",))])
    assert len(told) <= 210


def test_a_hostile_message_is_text_on_the_page_and_on_the_terminal():
    event = Event("SEND", f"out{HOSTILE}", True, positions=((5, 0),), error=HOSTILE)
    told = rows(result(event, Event("FAULT", note=HOSTILE)), [])
    html = page(HOSTILE, [HOSTILE], [HOSTILE], told, False)
    assert "<script" not in html
    assert html.count("</svg>") == 1
    assert "\x1b" not in as_text(told)
    assert "\x00" not in html


def test_the_drawing_is_well_formed_and_needs_nothing_else():
    told = rows(result(Event("SEND", "out<&"), Event("FAULT", note="x < y")), [])
    svg = ElementTree.fromstring(drawn(told))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "SEND out<&" in texts
    html = page("NOT EXACTLY ONCE", ["lost: x"], [], told, False)
    assert "src=" not in html
    assert "href" not in html
    assert html.count("http") == 1  # SVG's namespace
