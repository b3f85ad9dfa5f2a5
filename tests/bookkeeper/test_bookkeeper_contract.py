"""The contract of every backend on real bookies: tests/managed_ledger/test_backend_contract.py."""

import pytest
from test_backend_contract import *  # noqa: F403

pytestmark = [pytest.mark.slow, pytest.mark.java]
