"""What a browser sends besides the path: its cookie and the fields of a form.

Both come from visitors who may not be logged in. So they are read by hand, in time proportional to
their size: some versions of the standard library take seconds for a cookie of 60 kB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.base.runtime import own_turn

BEFORE_LOGIN_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 1024 * 1024  # a message to send, or a schema
_TOKEN: Final = b"form_token="
_MOST_FIELDS: Final = 200
_PIECE_BYTES: Final = 32 * 1024  # decoded in one turn of the loop
_ESCAPE_BYTES: Final = 3


def cookie_of(request: Request, name: str) -> str:
    """The cookie's value as sent; empty if there is none. The last one counts."""
    found = ""
    for header in request.headers.getlist("cookie"):
        for pair in header.split(";"):
            key, _, value = pair.partition("=")
            if key.strip() == name:
                found = value.strip()
    return found


@dataclass(frozen=True, slots=True)
class SentForm:
    """A form as it came. Only its token is decoded before `fields` is called."""

    parts: Sequence[bytes]

    @property
    def token(self) -> str:
        said = (part.removeprefix(_TOKEN) for part in self.parts if part.startswith(_TOKEN))
        return next(said, b"")[:BEFORE_LOGIN_BYTES].decode(errors="replace")

    async def fields(self) -> FormData:
        """The decoded fields; of two with one name, the last."""
        found = {}
        for part in filter(None, self.parts):
            name, _, value = part.partition(b"=")
            found[await _decoded(name)] = await _decoded(value)
        return FormData(found)


async def read_form(request: Request, most_bytes: int) -> SentForm:
    """Raises HTTPException if the form is too large or is none."""
    too_large = HTTPException(413, f"A form may have at most {most_bytes // 1024} KiB here")
    if int(request.headers.get("content-length", "0")) > most_bytes:
        raise too_large
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            raise too_large
    body = b"".join(pieces)
    try:
        body.decode()
    except ValueError:
        raise HTTPException(400, "The form cannot be read") from None
    if body.count(b"&") >= _MOST_FIELDS:
        raise HTTPException(400, f"The form has more than {_MOST_FIELDS} fields")
    return SentForm(body.split(b"&"))


async def _decoded(sent: bytes) -> str:
    text = sent.replace(b"+", b" ")
    if b"%" not in text:
        return text.decode(errors="replace")
    pieces, at = [], 0
    while at < len(text):
        end = at + _PIECE_BYTES
        split = text.rfind(b"%", end - _ESCAPE_BYTES + 1, end)  # an escape across the end
        end = split if split >= 0 else end
        pieces.append(unquote_to_bytes(text[at:end]))
        at = end
        if at < len(text):
            await own_turn()
    return b"".join(pieces).decode(errors="replace")
