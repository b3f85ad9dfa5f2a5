"""What every backend promises, on simulated bookies: test_backend_contract.py there."""

from simulated_storage import life, make_backend, process, run  # noqa: F401
from test_backend_contract import *  # noqa: F403

# It reads the loop's exception handler, which a simulated process does not have.
del test_one_failing_callback_does_not_silence_the_others  # noqa: F821
