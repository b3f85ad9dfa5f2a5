"""Whatever the wire can carry: others are served, the memory comes back, the log stays clean.

No time is asserted here, where the machine may be busy: `make extremes` does.
"""

import pytest
from extreme_run import attack


@pytest.mark.slow
def test_extreme_values_in_every_command_and_route_do_no_harm() -> None:
    faults, _ = attack(measured=False)
    assert not faults, "\n".join(faults)
