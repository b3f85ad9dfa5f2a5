"""The contract of every backend on simulated bookies:
tests/managed_ledger/test_backend_contract.py.
"""

from simulated_storage import life, make_backend, process, run  # noqa: F401
from test_backend_contract import *  # noqa: F403

# This test needs the loop's exception handler, which a simulated process does not have.
del test_one_failing_callback_does_not_silence_the_others  # noqa: F821
