"""Values stored by versions with a laxer JSON are shown as far as JSON can express them."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from pybroker.admin.routing import route


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ([float("nan"), float("-inf"), 1.5], [None, None, 1.5]),
        ({"half \ud800": "\udfff", "ü": "😀"}, {"half ?": "?", "ü": "😀"}),
    ],
)
def test_numbers_that_are_none_and_halves_of_characters_are_no_error(
    stored: Any, said: Any
) -> None:
    async def handler(_: Request) -> Any:
        return stored

    made = route("GET", "/odd", handler)
    answer = asyncio.run(made.endpoint(Request({"type": "http"})))
    assert (answer.status_code, answer.media_type) == (200, "application/json")
    assert json.loads(answer.body) == said
