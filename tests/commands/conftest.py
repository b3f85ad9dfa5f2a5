import io
import re
import sys
from collections.abc import Callable, Iterator

import pytest

import pybroker.testing
from pybroker.client import Client
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url) as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name)


@pytest.fixture
def run(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*words: str) -> tuple[int, str, str]:
        try:
            code = main([words[0], "--url", broker.service_url, *words[1:]])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return ran


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def type_in(text: str) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)

    return type_in
