"""Times of the last activity of a consumer, or of all consumers of a subscription: for stats, and
to see whether a subscription is in use.
"""


class LastTimes:
    """Milliseconds since 1970; 0 for never, or not since the topic was loaded."""

    __slots__ = (
        "_idle",
        "acknowledged_ms",
        "expired",
        "expired_ms",
        "first_flow_ms",
        "first_sent_ms",
        "flow_ms",
        "mark_delete_moved_ms",
        "sent_ms",
    )

    def __init__(self) -> None:
        self.first_flow_ms = self.flow_ms = 0
        self.first_sent_ms = self.sent_ms = 0
        self.acknowledged_ms = self.mark_delete_moved_ms = 0
        self.expired = self.expired_ms = 0  # number of expired entries; time of the last expiry
        # The loop time at which inactivity was first observed, and `flow_ms` and `acknowledged_ms`
        # then.
        self._idle: tuple[float, int, int] | None = None

    def flow(self, now_ms: int) -> None:
        self.flow_ms = now_ms
        self.first_flow_ms = self.first_flow_ms or now_ms

    def sent(self, now_ms: int) -> None:
        self.sent_ms = now_ms
        self.first_sent_ms = self.first_sent_ms or now_ms

    def expire(self, entries: int, now_ms: int) -> None:
        self.expired += entries
        self.expired_ms = now_ms

    def in_use(self) -> None:
        self._idle = None

    def idle_since(self, now_s: float) -> float:
        """The loop time since which no check has found activity; `now_s` is the present time."""
        done = self.flow_ms, self.acknowledged_ms
        if self._idle is None or self._idle[1:] != done:
            self._idle = now_s, *done
        return self._idle[0]
