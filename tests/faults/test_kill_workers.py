"""What the load of the kill rounds takes for its own transactions' timeout, and what it reports."""

import time

import pytest
from kill_workers import TXN_TIMEOUT_MS, check_timed_out

from pybroker.client import InvalidTxnStatus

REFUSAL = InvalidTxnStatus("Transaction (0,1) is ABORTED, not OPEN")


def test_a_transaction_that_ended_before_its_timeout_is_reported_with_its_age_and_state() -> None:
    with pytest.raises(RuntimeError, match=r"^\d+\.\d s after it began: .* is ABORTED, not OPEN$"):
        check_timed_out(time.monotonic(), REFUSAL)


def test_one_that_ended_after_its_timeout_is_not() -> None:
    check_timed_out(time.monotonic() - TXN_TIMEOUT_MS / 1000, REFUSAL)
