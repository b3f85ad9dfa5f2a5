"""Results of actions. The next page that the same browser opens shows them, once."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

_MOST: Final = 200
_MOST_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class Notice:
    text: str
    failed: bool = False


class Notices:
    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Notice] = OrderedDict()  # by the browser's id

    def leave(self, browser_id: str, notice: Notice) -> None:
        if len(notice.text) > _MOST_CHARS:
            notice = replace(notice, text=f"{notice.text[:_MOST_CHARS]}…")
        self._waiting[browser_id] = notice
        self._waiting.move_to_end(browser_id)
        if len(self._waiting) > _MOST:
            self._waiting.popitem(last=False)

    def take(self, browser_id: str) -> Notice | None:
        return self._waiting.pop(browser_id, None)
