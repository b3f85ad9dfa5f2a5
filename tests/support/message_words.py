"""Commands for tests of `pybroker produce` and similar ones, and their output."""

import re
import signal
import subprocess
import sys
from functools import partial
from typing import Any

from pybroker.client import Client, MessageId
from pybroker.testing import RunningBroker

RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


def stored(client: Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next().data())
    reader.close()
    return found


def contents(out: str) -> list[str]:
    return re.findall(r"content:(.*)", out)


def command(broker: RunningBroker, *words: str, **how: Any) -> "subprocess.Popen[bytes]":
    service = ["--url", broker.service_url]
    return subprocess.Popen(
        [sys.executable, "-m", "pybroker", *words, *service],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A background job of a shell ignores Ctrl-C, and its children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        **how,
    )
