"""One request of a browser, for the handlers of pages."""

import time
from dataclasses import dataclass, field
from typing import Any, Final

from jinja2 import Environment
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pybroker.admin.services import AdminServices
from pybroker.base.runtime import Pace
from pybroker.console.api import Api, Asked, Refused
from pybroker.console.notices import Notice, Notices
from pybroker.console.stream import MEDIA_TYPE

_SEE_OTHER: Final = 303
_PAUSE: Final = 20  # times the duration of the last part
_PIECES_A_TURN: Final = 200
MOST_CHARS: Final = 8 * 1024 * 1024  # of a page
MOST_WORDS: Final = 20


class NotConfirmed(Exception):
    """The form of a destructive action came without its confirmation."""


@dataclass(slots=True)
class Visit:
    request: Request
    api: Api
    services: AdminServices
    templates: Environment
    notices: Notices
    kept: dict[str, Any]  # shared by all visits; each page uses its own names
    browser_id: str
    form_token: str
    form: FormData = field(default_factory=FormData)
    entered: bool = False  # logged in, or no login is required
    place: str = ""  # the page's path in the navigation
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = time.monotonic()  # the broker's clock may jump meanwhile

    @property
    def is_partial(self) -> bool:
        """Whether the request is for a part of a page: by htmx, or as a stream."""
        return "hx-request" in self.request.headers or self.is_stream

    @property
    def is_stream(self) -> bool:
        return self.request.headers.get("accept") == MEDIA_TYPE

    @property
    def is_asked_again(self) -> bool:
        """Whether htmx polls this part because the browser has no stream."""
        return self.is_partial and not self.is_stream

    @property
    def parts(self) -> dict[str, Any]:
        """The variables in the path, decoded."""
        return self.request.path_params

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, least: int = 0, most: int = 10**9) -> int:
        said = self.query(name)
        if not said.isascii() or not said.isdigit() or len(said) > 18:
            return default
        return max(least, min(int(said), most))

    def words(self, name: str) -> list[str]:
        """The different words of a search, in lower case. Raises Refused."""
        words = list(dict.fromkeys(self.query(name).lower().split()))
        if len(words) > MOST_WORDS:
            raise Refused(400, f"Search for at most {MOST_WORDS} words at once")
        return words

    def said(self, name: str) -> str:
        """A field of the form, without surrounding spaces."""
        value = self.form.get(name, "")
        return value.strip() if isinstance(value, str) else ""

    def confirm(self, name: str) -> None:
        """Raises NotConfirmed unless the form's field `confirm` equals `name`."""
        if self.said("confirm") != name:
            raise NotConfirmed(f"Nothing was done: type {name} to confirm")

    def again_in_s(self, soonest_s: float) -> float:
        """The seconds until a live part is requested again. An open page takes at most a twentieth
        of the broker's time.
        """
        took_s = time.monotonic() - self.began_s
        return max(soonest_s, round(took_s * _PAUSE, 1))

    # -- answers

    async def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """The page, made in many turns of the loop. Raises Refused if it is too large to read."""
        pieces, size, pace = list[str](), 0, Pace(_PIECES_A_TURN)
        for piece in self.templates.get_template(template).generate(
            visit=self,
            api=self.api,
            now_ms=self.services.clock.now_ms(),
            form_token=self.form_token,
            notice=None if self.is_partial else self.notices.take(self.browser_id),
            **values,
        ):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_CHARS:
                raise Refused(413, "This page would be too large: ask for less, or the admin API")
            await pace.step()
        # JSON may contain an unpaired surrogate.
        return HTMLResponse("".join(pieces).encode(errors="replace"), status)

    def go(self, url: str, said: str = "", failed: bool = False) -> Response:
        """Redirects to another page, which shows the text `said`."""
        if said:
            self.notices.leave(self.browser_id, Notice(said, failed))
        return RedirectResponse(url, _SEE_OTHER)

    async def act(
        self,
        method: str,
        template: str,
        done: str,
        back: str,
        query: Asked | None = None,
        body: Any = None,
        /,
        **names: str | int,
    ) -> Response:
        """Sends a change to the admin API, and reports the result on the page `back`."""
        try:
            (await self.api.ask(method, template, query, body, **names)).check()
        except Refused as refused:
            return self.go(back, refused.reason, failed=True)
        return self.go(back, done)
