"""Cumulative acknowledgements that name what they cover, wrongly or unchecked."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.client.consuming.given import Given
from pybroker.client.consuming.passes import Passes
from pybroker.transaction.pending_acks.covered import Covered


@contextmanager
def covered_ones_not_checked() -> Iterator[None]:
    """The broker accepts messages that are acknowledged already."""
    with patch.object(Covered, "require_unacknowledged", lambda *_: None):
        yield


@contextmanager
def held_before_a_reconnect_forgotten() -> Iterator[None]:
    """The client names only what came over its present connection."""

    def since(self: Passes, _: int) -> Iterator[Given]:
        yield self._intake.given

    with patch.object(Given, "goes_on", lambda *_: None), patch.object(Passes, "_since", since):
        yield


@contextmanager
def received_later_and_named() -> Iterator[None]:
    """The client names messages that the application received after the last one."""
    with patch.object(Passes, "unclear", lambda *_: None):
        yield


BUGS = {
    "covered-ones-not-checked": covered_ones_not_checked,
    "held-before-a-reconnect-forgotten": held_before_a_reconnect_forgotten,
    "received-later-and-named": received_later_and_named,
}
