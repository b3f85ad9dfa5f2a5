"""The console as an ASGI application: identifies the visitor, finds the page, adds the headers.

Before the login it serves only the login page and its styles. Pages are rendered from the admin
API's answers (`api.py`).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybroker.admin.http.authenticated import CERTIFICATE
from pybroker.admin.services import AdminServices
from pybroker.base.errors import PulsarError
from pybroker.base.machines import machine_of
from pybroker.base.version import version
from pybroker.console.api import OUTER_RECEIVE, Api, Refused
from pybroker.console.assets import ASSETS, WITHOUT_LOGIN, asset_url, assets
from pybroker.console.formats import FILTERS, moment, percent
from pybroker.console.forms import BEFORE_LOGIN_BYTES, MOST_BYTES, cookie_of, read_form
from pybroker.console.login import LOGIN, LoginViews
from pybroker.console.notices import Notices
from pybroker.console.page import Page, View
from pybroker.console.pages.table import PAGES
from pybroker.console.sessions import COOKIE, FormTokens, Sessions, new_id
from pybroker.console.stream import MEDIA_TYPE, EventStream, Part, Streams
from pybroker.console.visit import NotConfirmed, Visit
from pybroker.security.identity import Identity

log = logging.getLogger(__name__)

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers would send forms with `Origin: null`, which is refused.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_OF_EVERY_PAGE: Final = ("base.html", "parts.html")
_KEPT: Final = "private, max-age=31536000, immutable"
_READING: Final = ("GET", "HEAD")
_LONGEST_ID: Final = 100


class ConsoleApplication:
    """Construct it in a thread: it reads and compiles what every page needs."""

    def __init__(self, api: ASGIApp, services: AdminServices) -> None:
        self._api = api
        self._services = services
        self._notices = Notices()
        self._kept: dict[str, Any] = {}
        self._form_tokens = FormTokens()
        self._streams = Streams()
        authentication = services.authentication
        self._sessions = None
        if authentication is not None:
            self._sessions = Sessions(authentication, services.clock)
        self._login = LoginViews(self._sessions, self._secure_cookie)
        pages = tuple(page for page in PAGES if page.is_offered(services))
        self._templates = _environment(services, pages)
        self._routes = [_route(page, view) for page in pages for view in page.views]
        assets()
        for name in _OF_EVERY_PAGE:
            self._templates.get_template(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request({**scope, OUTER_RECEIVE: receive}, receive)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        except HTTPException as refused:  # the body could not be read
            answer = PlainTextResponse(refused.detail, refused.status_code)
        except PulsarError as refused:  # an asset, while too many passwords are being checked
            answer = PlainTextResponse(str(refused), _shown_status(refused.http_status))
        await answer(scope, receive, send_with_headers)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path.rstrip("/")
        if path.startswith(ASSETS + "/"):
            return await self._asset(request, path.removeprefix(ASSETS + "/"))
        browser_id = cookie_of(request, COOKIE)
        is_new = not browser_id or len(browser_id) > _LONGEST_ID
        if is_new:
            browser_id = new_id()
        visit = self._visit(request, None, browser_id)
        answer = await _or_problem(visit, self._page(visit, path))
        if is_new and "set-cookie" not in answer.headers:
            self._secure_cookie(visit, answer, browser_id)
        return answer

    async def _page(self, visit: Visit, path: str) -> Response:
        request = visit.request
        if path == LOGIN and self._sessions is not None:
            await self._read_form(visit, BEFORE_LOGIN_BYTES)
            return await self._login.answer(visit)
        if not await self._enters(visit):
            return _to_login(visit)
        await self._read_form(visit, MOST_BYTES)
        if path == "/console/logout" and request.method == "POST":
            return self._login.log_out(visit)
        page, view, parts = self._found(request, path)
        request.scope["path_params"] = parts
        visit.place = page.path
        if view.live and visit.is_stream and request.method == "GET":
            return await self._stream(visit, view)
        try:
            return await view.handler(visit)
        except NotConfirmed as missing:
            return visit.go(_page_before(visit), str(missing), failed=True)

    async def _enters(self, visit: Visit) -> bool:
        if self._sessions is not None:
            identity = await self._identity(visit.request, visit.browser_id)
            if identity is None:
                return False
            visit.api = self._api_for(visit.request, identity)
        visit.entered = True
        return True

    async def _stream(self, visit: Visit, view: View) -> Response:
        if visit.request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return Response(status_code=403)

        async def part() -> Part | None:
            now = self._visit(visit.request, None, visit.browser_id)
            now.place = visit.place
            try:
                if not await self._enters(now):
                    return None
            except PulsarError:  # too many passwords are being checked
                return None
            answer = await _or_problem(now, view.handler(now))
            return Part(bytes(answer.body), is_last=answer.status_code >= 400)

        first = await view.handler(visit)  # may raise a refusal
        machine = machine_of(address_of(visit.request))
        if not self._streams.make_room(visit.browser_id, machine):
            return Response(status_code=429)

        def is_open() -> bool:
            return self._sessions is None or self._sessions.is_open(visit.browser_id)

        begins_with = Part(bytes(first.body))
        return EventStream(self._streams, visit.browser_id, begins_with, part, is_open, machine)

    def _found(self, request: Request, path: str) -> tuple[Page, View, dict[str, Any]]:
        method = "GET" if request.method == "HEAD" else request.method
        scope = {"type": "http", "path": path, "method": method, "root_path": ""}
        for page, view, route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return page, view, child["path_params"]
        raise HTTPException(404, "There is no such page")

    async def _asset(self, request: Request, name: str) -> Response:
        asset = assets().get(name)
        if self._sessions is not None and name not in WITHOUT_LOGIN:
            identity = await self._identity(request, cookie_of(request, COOKIE))
            if identity is None:
                return Response(status_code=404)
        if asset is None or request.method not in _READING:
            return Response(status_code=404)
        body = b"" if request.method == "HEAD" else asset.content
        return Response(body, 200, {"cache-control": _KEPT}, asset.media_type)

    # -- the visitor

    async def _identity(self, request: Request, browser_id: str) -> Identity | None:
        assert self._sessions is not None
        by_itself = "hx-request" in request.headers or request.headers.get("accept") == MEDIA_TYPE
        certificate = request.scope.get(CERTIFICATE)
        address = address_of(request)
        return await self._sessions.identity(browser_id, address, by_itself, certificate)

    def _visit(self, request: Request, identity: Identity | None, browser_id: str) -> Visit:
        return Visit(
            request=request,
            api=self._api_for(request, identity),
            services=self._services,
            templates=self._templates,
            notices=self._notices,
            kept=self._kept,
            browser_id=browser_id,
            form_token=self._form_tokens.of(browser_id),
        )

    def _api_for(self, request: Request, identity: Identity | None) -> Api:
        return Api(self._api, self._services.authorizer, request.scope, identity)

    async def _read_form(self, visit: Visit, most_bytes: int) -> None:
        """Reads the form, if one was sent. Refuses a form that a page of another site sent, before
        its fields are decoded.
        """
        if visit.request.method in _READING:
            return
        refused = HTTPException(
            403,
            "This form is outdated or from another site: go back, reload the page and send it "
            "again",
        )
        if visit.request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise refused
        form = await read_form(visit.request, most_bytes)
        if not self._form_tokens.fits(form.token, visit.browser_id):
            raise refused
        visit.form = await form.fields()

    def _secure_cookie(self, visit: Visit, answer: Response, browser_id: str) -> None:
        answer.set_cookie(
            COOKIE,
            browser_id,
            path="/console",
            secure=visit.request.scope.get("scheme") == "https",
            httponly=True,
            samesite="strict",
        )


def address_of(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _to_login(visit: Visit) -> Response:
    request = visit.request
    if visit.is_partial:
        return Response(status_code=401, headers={"hx-redirect": LOGIN})
    if request.method not in _READING:
        return RedirectResponse(LOGIN, 303)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{LOGIN}?to={quote(path, safe='')}", 303)


async def _or_problem(visit: Visit, answer: Awaitable[Response]) -> Response:
    """The response; an error page if the handler fails."""
    try:
        return await answer
    except Refused as refused:
        return await _problem(visit, _shown_status(refused.status), refused.reason)
    except PulsarError as error:
        return await _problem(visit, _shown_status(error.http_status), str(error))
    except HTTPException as error:
        return await _problem(visit, error.status_code, error.detail)
    except ClientDisconnect:
        raise
    except Exception as error:
        log.exception("a page of the console failed: %s", visit.request.url.path)
        reason = f"Internal error: {type(error).__name__}; see the log"
        return await _problem(visit, 500, reason)


async def _problem(visit: Visit, status: int, reason: str) -> Response:
    if visit.is_partial:
        return await visit.render("problem_part.html", status, reason=reason)
    return await visit.render("problem.html", status, reason=reason, code=status)


def _shown_status(status: int) -> int:
    """Replaces 401, Apache Pulsar's status for a role that lacks a permission, by 403."""
    return 403 if status == 401 else status


def _page_before(visit: Visit) -> str:
    """The page that the form names as the previous one, if it belongs to the console."""
    back = visit.said("back")
    return back if back.startswith("/console") and "\\" not in back else "/console"


def _route(page: Page, view: View) -> tuple[Page, View, Route]:
    async def unused(_: Request) -> Response:
        raise AssertionError("the site calls the view itself")

    return page, view, Route(view.path, unused, methods=[view.method])


def _environment(services: AdminServices, pages: tuple[Page, ...]) -> Environment:
    templates = Environment(
        loader=PackageLoader("pybroker.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(FILTERS)
    shared: dict[str, Callable[..., Any] | Any] = {
        "asset_url": asset_url,
        "moment": moment,
        "percent": percent,
        "pages": pages,
        "version": version(),
        "cluster": services.config.cluster_name,
        "has_login": services.authentication is not None,
    }
    templates.globals.update(shared)
    return templates
