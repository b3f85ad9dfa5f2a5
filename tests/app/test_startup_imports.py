"""Modules that the binary port must not wait for, and those that a single broker never loads.

A module costs about half a millisecond of each start: a feature is loaded when it is first used.
"""

import subprocess
import sys

HEAVY = ("starlette", "uvicorn", "h11", "anyio", "difflib", "http.client", "importlib.metadata")

OF_CLUSTERS = (
    "managed_ledger.storage.bookkeeper",
    "managed_ledger.storage.zookeeper",
    "pybroker.cluster",
    "pybroker.process.clustered",
)

OF_FEATURES = (
    "pybroker.broker.compaction.compactor",
    "pybroker.broker.scalable",
    "pybroker.broker.topic_lists.pattern",
    "pybroker.security.basic",
    "pybroker.security.certificate_tool",
    "pybroker.security.htpasswd",
    "pybroker.security.password_queue",
    "pybroker.security.permissions",
    "pybroker.security.token",
    "pybroker.server.guarded",
    "pybroker.server.scalable",
    "pybroker.server.topics.on_ask_topics",
    "pybroker.server.transactions.on_ask_transaction",
    "pybroker.server.transactions.on_fence_sessions",
    "pybroker.server.transactions.on_kafka_transaction",
    "pybroker.server.topics.on_topic_list",
    "pybroker.server.transactions.on_transaction_group",
    "pybroker.transaction.buffer.commit_order.commit_order_buffer",
)
OF_KAFKA = ("pybroker.kafka",)
OF_REQUESTS = (
    "pybroker.admin.application",
    "pybroker.admin.metrics",
    "pybroker.admin.routes",
    "pybroker.client",
    "pybroker.console",
    "pybroker.faults",
    "pybroker.gateway",
    "pybroker.server.local",
    "wsproto",
)
# Modules of the broker and its storage, packages included; it grew by a hundred unnoticed once.
MOST_OWN = 336


def test_the_binary_port_does_not_wait_for_the_web_framework() -> None:
    script = "import sys, pybroker.process.cli, pybroker.process.app; print(*sys.modules)"
    loaded = _printed_by(script)
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith(OF_CLUSTERS + OF_FEATURES)] == []
    own = [name for name in loaded if name.startswith(("pybroker", "managed_ledger"))]
    assert len(own) <= MOST_OWN


SERVING = """
import asyncio, random, sys
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import SystemClock
from pybroker.process.app import Broker

async def serve():
    broker = Broker(BrokerConfig(), MemoryBackend(), SystemClock(), random.Random())
    await broker.start(("127.0.0.1", 0), ("127.0.0.1", 0))
    print(*sys.modules)
    await broker.stop()

asyncio.run(serve())
"""


def test_the_admin_api_and_the_console_wait_for_the_first_request() -> None:
    loaded = _printed_by(SERVING)
    assert "pybroker.admin.http.server" in loaded
    assert [name for name in loaded if name.startswith(OF_REQUESTS + OF_KAFKA)] == []


def _printed_by(script: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return ended.stdout.split()


def test_a_client_of_ordinary_topics_loads_nothing_of_scalable_ones() -> None:
    program = (
        "import sys, pybroker.client.aio\n"
        "assert not [name for name in sys.modules if 'scalable' in name], sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
