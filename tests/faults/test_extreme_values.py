"""Extreme values of the protocol: other clients are served, memory is freed, and the log stays
clean.

These tests assert no times, because the machine may be busy: `make extremes` does.
"""

import pytest
from extreme_run import attack


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_extreme_values_in_every_command_and_route_do_no_harm() -> None:
    faults, _ = attack(measured=False)
    assert not faults, "\n".join(faults)
