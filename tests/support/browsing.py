"""A browser without a screen: cookies, forms with their tokens, and a page's text."""

import html
import re
from typing import Any

import httpx

_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')


class Browser:
    def __init__(self, admin_url: str) -> None:
        self.http = httpx.Client(base_url=admin_url, headers={"accept": "text/html"})

    def open(self, path: str) -> httpx.Response:
        """Get a page without following redirects."""
        return self.http.get(path)

    def page(self, path: str) -> str:
        answer = self.http.get(path, follow_redirects=True)
        assert answer.status_code == 200, (answer.status_code, words(answer.text))
        return answer.text

    def form_token(self, path: str = "/console/login") -> str:
        found = _TOKEN.search(self.page(path))
        assert found is not None, f"{path} has no form"
        return found[1]

    def send(self, path: str, token_from: str, **fields: Any) -> httpx.Response:
        data = {"form_token": self.form_token(token_from), **fields}
        return self.http.post(path, data=data)

    def do(self, path: str, token_from: str, **fields: Any) -> str:
        """Submit a form; returns the next page, which reports the result."""
        answer = self.send(path, token_from, **fields)
        assert answer.status_code == 303, (answer.status_code, words(answer.text))
        return self.page(answer.headers["location"])

    def log_in(self, token: str) -> httpx.Response:
        return self.send("/console/login", "/console/login", method="token", token=token)


def words(page: str) -> str:
    """The visible text, with single spaces."""
    shown = re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(shown).split())


def tile(page: str, label: str) -> str:
    """The text under a label."""
    found = re.search(rf"<dt>{re.escape(label)}</dt>\s*<dd>(.*?)</dd>", page, re.DOTALL)
    assert found is not None, f"no {label}"
    return words(found[1])
