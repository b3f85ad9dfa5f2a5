"""Managed ledgers and cursors on simulated bookies: repeats tests of tests/managed_ledger."""

import pytest
from simulated_storage import append_at_once, life, make_backend, process, run  # noqa: F401
from storage_fixtures import clock, start  # noqa: F401
from test_cursor import *  # noqa: F403
from test_factory import *  # noqa: F403
from test_ledger import *  # noqa: F403
from test_ledger_meanwhile import *  # noqa: F403
from test_ledger_upkeep import *  # noqa: F403
from test_trim import *  # noqa: F403

pytestmark = pytest.mark.slow
