"""When a consumer, or any consumer of a subscription, last did what: for its stats."""


class LastTimes:
    """Milliseconds since 1970; 0 for never, or not since the topic was loaded."""

    __slots__ = (
        "acknowledged_ms",
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

    def flow(self, now_ms: int) -> None:
        self.flow_ms = now_ms
        self.first_flow_ms = self.first_flow_ms or now_ms

    def sent(self, now_ms: int) -> None:
        self.sent_ms = now_ms
        self.first_sent_ms = self.first_sent_ms or now_ms
