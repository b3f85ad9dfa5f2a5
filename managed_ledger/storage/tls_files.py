"""TLS client settings from PEM files, for instance for the storage's servers.

Changed files are read again for a new connection, so certificates can be renewed while the process
runs. If a renewed file cannot be used, an error is logged and the previous one stays in use.
"""

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    trusted: str = ""  # CA certificates; empty: those of the system
    certificate: str = ""  # the client's; empty: none
    key: str = ""  # empty: in the file of the certificate
    key_password_file: str = ""
    checks_host_name: bool = True

    @property
    def paths(self) -> list[str]:
        return [*filter(None, (self.trusted, self.certificate, self.key, self.key_password_file))]

    def context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError too), ValueError."""
        context = ssl.create_default_context(cafile=self.trusted or None)
        context.check_hostname = self.checks_host_name
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key or None, self._password)
        return context

    def _password(self) -> str:
        if not self.key_password_file:
            raise ValueError(f"{self.key or self.certificate} is encrypted: name a password file")
        with open(self.key_password_file, encoding="utf-8") as lines:
            return lines.read().strip()


class ClientTls:
    def __init__(self, files: TlsFiles, refresh_s: float | None = 300.0) -> None:
        """`refresh_s`: the least time between two checks of the files; None: only `reload` checks.
        Raises OSError (ssl.SSLError too), ValueError if the files cannot be used.
        """
        self.files = files
        self._refresh_s = refresh_s
        self._looked_s: float | None = None
        self._seen = self._state()
        self._context = files.context()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        now_s = asyncio.get_running_loop().time()
        if self._looked_s is None:
            self._looked_s = now_s
        elif self._refresh_s is not None and now_s - self._looked_s >= self._refresh_s:
            self._looked_s = now_s
            self.reload()
        return self._context

    def reload(self) -> bool:
        """Check the files now; new connections use changed ones. False if they cannot be read,
        which is logged.
        """
        seen = self._state()
        if seen == self._seen:
            return True
        try:
            self._context = self.files.context()
        except (OSError, ValueError) as error:
            names = ", ".join(self.files.paths)
            log.error("the previous certificates stay in use: %s cannot be read: %s", names, error)
            return False
        self._seen = seen
        log.info("certificates were read again: %s", ", ".join(self.files.paths))
        return True

    def _state(self) -> list[tuple[int, int]]:
        found = []
        for path in self.files.paths:
            try:
                stat = os.stat(path)
            except OSError:
                found.append((0, 0))  # the file is being replaced
            else:
                found.append((stat.st_mtime_ns, stat.st_ino))
        return found
