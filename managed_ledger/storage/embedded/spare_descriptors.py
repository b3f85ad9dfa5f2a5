"""Spare descriptors, so that files can be opened even when connections use all others.

When the process has no descriptor left, a spare one is closed and the file opened in its place.
Whenever a file is closed, a spare descriptor is opened again.
"""

import os
from collections.abc import Callable
from typing import Final, TypeVar

from managed_ledger.storage.embedded.disk_errors import is_out_of_descriptors

COUNT: Final = 16  # more than there are threads that open files
T = TypeVar("T")


class SpareDescriptors:
    """Safe for several threads, because each list operation is atomic."""

    def __init__(self, count: int = COUNT) -> None:
        self._count = count
        self._spare: list[int] = []

    def refill(self) -> None:
        """Open as many spare descriptors as the system allows, up to COUNT."""
        while len(self._spare) < self._count:
            try:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return

    def close(self) -> None:
        while self._give_up_one():
            pass

    def opened(self, opening: Callable[[], T]) -> T:
        """The result of `opening`. Raises the errors of `opening`, EMFILE too if no spare
        descriptor is left, because other threads may have taken them.
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
