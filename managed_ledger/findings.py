"""What a check of stored data reports."""

from typing import NamedTuple


class Finding(NamedTuple):
    """`what` and `lost` are clauses, `advice` is a sentence. A finding without damage is a note:
    the next start resolves it.
    """

    where: str  # a file, a log, a cursor, a topic
    what: str
    lost: str = ""
    advice: str = ""
    is_damage: bool = True


def note(where: str, what: str) -> Finding:
    return Finding(where, what, is_damage=False)
