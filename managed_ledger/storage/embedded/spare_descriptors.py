"""Spare descriptors, so that files can be opened when connections have taken all others.

When none is left, a spare one is closed and the file opened in its place; each closed file makes
room for a spare one again.
"""

import os
from collections.abc import Callable
from typing import Final, TypeVar

from managed_ledger.storage.embedded.disk_errors import is_out_of_descriptors

COUNT: Final = 16  # more than there are threads that open files
T = TypeVar("T")


class SpareDescriptors:
    """Used by several threads: each list operation is atomic."""

    def __init__(self, count: int = COUNT) -> None:
        self._count = count
        self._spare: list[int] = []

    def refill(self) -> None:
        """As many as are available."""
        while len(self._spare) < self._count:
            try:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return

    def close(self) -> None:
        while self._give_up_one():
            pass

    def opened(self, opening: Callable[[], T]) -> T:
        """Returns the result of `opening`. Raises as it does, also EMFILE when all spare ones are
        used up: other threads may have taken them.
        """
        while True:
            try:
                return opening()
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._give_up_one():
                    raise

    def _give_up_one(self) -> bool:
        try:
            descriptor = self._spare.pop()
        except IndexError:
            return False
        os.close(descriptor)
        return True
