"""The broker under load: a process whose CPU and memory are measured apart from the load's."""

import re
import time
import urllib.request
from pathlib import Path

from pybroker.testing.broker_process import BrokerProcess


class MeasuredBroker(BrokerProcess):
    """With `profile`, the broker writes a profile there when it stops, and is half as fast."""

    def __init__(
        self, data_dir: Path, config: Path, profile: Path | None = None, kafka: bool = False
    ) -> None:
        super().__init__(data_dir, ["--config", str(config)], kafka=kafka)
        self.data_dir = data_dir
        if profile is not None:
            interpreter, *module = self.program
            self.program = [interpreter, "-m", "cProfile", "-o", str(profile), *module]

    @property
    def port(self) -> int:
        return int(self.service_url.rpartition(":")[2])

    def cpu_s(self) -> float:
        """User and system time of all threads so far, exact to the microsecond."""
        return cpu_s_of(self.pid)

    def metrics(self) -> str:
        """The text of /metrics as it is now, not as it was when somebody else asked."""
        time.sleep(1.1)  # answers are cached for a second
        with urllib.request.urlopen(f"{self.admin_url}/metrics") as answer:
            return str(answer.read().decode())

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


def cpu_s_of(pid: int) -> float:
    # As clock_getcpuclockid(3): the id of another process's CPU-time clock.
    return time.clock_gettime(~pid << 3 | 2)
