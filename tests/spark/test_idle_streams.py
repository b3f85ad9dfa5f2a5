"""How often an idle stream asks the broker; under a virtual clock."""

from pybroker.spark.reading.idle import MOST_S, Idleness


class Stream:
    """Spark asks the source again as soon as it has an answer, or after `every_s`."""

    def __init__(self, every_s: float = 0.0) -> None:
        self.now_s, self.every_s, self.waited_s = 0.0, every_s, 0.0
        self.idleness = Idleness(self._pause, lambda: self.now_s)

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.waited_s += seconds

    def ask(self, has_more: bool = False) -> None:
        self.idleness.wait()
        self.idleness.answered(has_more)
        self.now_s += self.every_s


def test_an_idle_stream_asks_some_times_a_second() -> None:
    stream, questions = Stream(), 0
    while stream.now_s < 60:
        stream.ask()
        questions += 1
    assert questions < 300


def test_no_message_waits_for_longer_than_a_moment() -> None:
    stream = Stream()
    for _ in range(1000):
        before_s = stream.now_s
        stream.ask()
        assert stream.now_s - before_s <= MOST_S


def test_a_stream_with_messages_never_waits() -> None:
    stream = Stream()
    stream.ask()
    stream.ask(has_more=True)
    stream.waited_s = 0.0
    for _ in range(100):
        stream.ask(has_more=True)
    assert stream.waited_s == 0


def test_who_asks_seldom_is_answered_at_once() -> None:
    stream = Stream(every_s=MOST_S)
    for _ in range(100):
        stream.ask()
    assert stream.waited_s == 0
