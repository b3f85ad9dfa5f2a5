"""Login with a token, a password or the connection's certificate, and logout."""

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from pybroker.admin.http.authenticated import CERTIFICATE
from pybroker.base.errors import PulsarError
from pybroker.console.sessions import Sessions
from pybroker.console.visit import Visit
from pybroker.logs import audit
from pybroker.security.identity import Credentials

LOGIN: Final = "/console/login"
SetCookie = Callable[[Visit, Response, str], None]


class LoginViews:
    def __init__(self, sessions: Sessions | None, set_cookie: SetCookie) -> None:
        self._sessions = sessions
        self._set_cookie = set_cookie

    async def answer(self, visit: Visit) -> Response:
        if visit.request.method == "POST":
            return await self._log_in(visit)
        return await _form(visit, 200, "")

    async def _log_in(self, visit: Visit) -> Response:
        assert self._sessions is not None
        client = visit.request.client
        address = client.host if client else "unknown"
        try:
            session_id = await self._sessions.begin(_shown(visit), address)
        except PulsarError as error:
            actor = audit.Actor("", f"{address}:{client.port}" if client else "")
            audit.refused(actor, "POST", LOGIN, error.http_status, str(error))
            return await _form(visit, error.http_status, error.on_the_wire)
        self._sessions.end(visit.browser_id)  # the browser forgets its old id
        answer = visit.go(_destination(visit))
        self._set_cookie(visit, answer, session_id)
        return answer

    def log_out(self, visit: Visit) -> Response:
        if self._sessions is not None:
            self._sessions.end(visit.browser_id)
        answer = visit.go(LOGIN)
        answer.delete_cookie("pybroker_console", path="/console")
        return answer


async def _form(visit: Visit, status: int, problem: str) -> Response:
    authentication = visit.services.authentication
    assert authentication is not None
    methods = [m for m in authentication.methods if m != "tls"]
    if "tls" in authentication.methods and visit.request.scope.get(CERTIFICATE):
        methods.append("tls")
    return await visit.render(
        "login.html", status, methods=methods, problem=problem, to=_destination(visit)
    )


def _shown(visit: Visit) -> Credentials | None:
    method = visit.said("method")
    if method == "tls":
        return Credentials("tls", certificate=visit.request.scope.get(CERTIFICATE))
    if token := visit.said("token"):
        return Credentials("token", token.encode())
    user, password = visit.said("user"), visit.form.get("password", "")
    if user and isinstance(password, str):
        return Credentials("basic", f"{user}:{password}".encode())
    return None


def _destination(visit: Visit) -> str:
    """The page that was requested before the login; never a page of another site."""
    to = visit.said("to") or visit.query("to")
    is_ours = to == "/console" or to.startswith(("/console/", "/console?"))
    return to if is_ours and "\\" not in to and not to.startswith(LOGIN) else "/console"
