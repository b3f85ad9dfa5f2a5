"""A PostgreSQL server of the machine's package, on a data directory of its own, to be killed."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

_DEBIAN = "/usr/lib/postgresql"
_STARTED_WITHIN_S = 60


def commands() -> Path | None:
    """The folder of `postgres` and `initdb`; None if PostgreSQL is not installed."""
    found = shutil.which("initdb")
    folders = [*sorted(Path(_DEBIAN).glob("*/bin"), reverse=True)]
    folders += [Path(found).resolve().parent] if found else []
    return next((each for each in folders if (each / "postgres").exists()), None)


class PostgreSQL:
    """Reached through a socket in its folder. PostgreSQL refuses to run as root: then it runs as
    the user that its package has made.
    """

    def __init__(self) -> None:
        self._commands = commands()
        assert self._commands is not None, "install PostgreSQL (Debian: postgresql)"
        # A socket's path may have 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="pg"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-U", "test", "-E", "UTF8", "-N")
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_STARTED_WITHIN_S)
        shutil.rmtree(self._folder)

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._path(name)), *arguments]
        subprocess.run(command, user=self._user, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def _path(self, name: str) -> Path:
        assert self._commands is not None
        return self._commands / name

    def start(self) -> None:
        self._process = self._started()
        wait = ["--timeout=1", f"--host={self._folder}", "--username=test", "--dbname=postgres"]
        for _ in range(_STARTED_WITHIN_S * 20):
            ready = subprocess.run(
                [str(self._path("pg_isready")), *wait], stdout=subprocess.DEVNULL, check=False
            )
            if ready.returncode == 0:
                return
            if self._process.poll() is not None:  # a process of the killed server is still there
                self._process = self._started()
        raise RuntimeError((self._folder / "log").read_text()[-2000:])

    def _started(self) -> subprocess.Popen[bytes]:
        options = ["-D", str(self._folder / "data"), "-k", str(self._folder), "-h", ""]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._path("postgres")), *options],
                user=self._user,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def kill(self) -> None:
        """SIGKILL to the server and to each of its processes."""
        assert self._process is not None
        tasks = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        children = [int(pid) for pid in tasks.read_text().split()]
        self._process.kill()
        self._process.wait()
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it saw the server go
                continue

    def conninfo(self, schema: str) -> str:
        options = f"-c search_path={schema}"
        return f"host={self._folder} user=test dbname=postgres options='{options}'"

    def create_schema(self, schema: str) -> str:
        """Returns how to connect to it."""
        with psycopg.connect(self.conninfo("public")) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return self.conninfo(schema)
