"""When a transaction buffer was recovered, and when it last wrote a snapshot of itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class BufferTimes:
    """Milliseconds since 1970; 0 means never."""

    recovery_began: int = 0
    recovered: int = 0
    snapshot: int = 0
