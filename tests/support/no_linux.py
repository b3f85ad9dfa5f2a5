"""pytest on this machine as if it were macOS, as far as names can tell: `no_linux.py ARGUMENTS`.

It takes away what CPython has on Linux only, and the files of /proc and /sys, and adds F_FULLFSYNC,
which is fsync here. It says nothing about how macOS behaves otherwise. It runs before the standard
library is loaded, which looks for some of these names, too.
"""

import _socket
import ctypes
import fcntl
import os
import posix
import select
import sys
import time
from typing import Any, Final

_OF_OS: Final = (
    "fdatasync sched_getaffinity sched_setaffinity O_DIRECT O_TMPFILE O_PATH O_NOATIME RWF_NOWAIT "
    "RWF_DSYNC posix_fallocate posix_fadvise pipe2 memfd_create eventfd pidfd_open getrandom "
    "copy_file_range splice listxattr getxattr setxattr"
)
_OF_SOCKETS: Final = (
    "SOCK_NONBLOCK SOCK_CLOEXEC TCP_USER_TIMEOUT TCP_QUICKACK TCP_CORK TCP_DEFER_ACCEPT TCP_INFO "
    "SO_PEERCRED SO_BINDTODEVICE SO_PRIORITY MSG_NOSIGNAL AF_NETLINK"
)
LACKING: Final[tuple[tuple[Any, str], ...]] = (
    (os, _OF_OS),
    (posix, _OF_OS),
    (_socket, _OF_SOCKETS),
    (select, "epoll"),
    (time, "CLOCK_BOOTTIME CLOCK_TAI"),
)
LACKING_IN_C: Final = ("mallopt", "adjtimex", "malloc_trim", "epoll_create", "prctl")
F_FULLFSYNC: Final = 51
FOLDERS: Final = ("/proc", "/sys")

full_syncs = 0
_c_function, _fcntl = ctypes.CDLL.__getattr__, fcntl.fcntl


def _c_function_of_macos(library: ctypes.CDLL, name: str) -> Any:
    if name in LACKING_IN_C:
        raise AttributeError(f"dlsym: symbol not found: {name}")
    return _c_function(library, name)


def _fcntl_of_macos(descriptor: int, command: int, *arguments: Any) -> Any:
    global full_syncs
    if command != F_FULLFSYNC:
        return _fcntl(descriptor, command, *arguments)
    full_syncs += 1
    os.fsync(descriptor)
    return 0


def _without_folders(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and isinstance(
        arguments[0], str | os.PathLike
    ):
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", path)


def take_away() -> None:
    for module, names in LACKING:
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    ctypes.CDLL.__getattr__ = _c_function_of_macos  # type: ignore[method-assign]
    fcntl.fcntl = _fcntl_of_macos
    fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]
    sys.addaudithook(_without_folders)


if __name__ == "__main__":
    assert "selectors" not in sys.modules, "what is imported already has kept its names"
    take_away()
    import sysconfig
    import urllib.request  # noqa: F401 asks macOS for its proxies where it is loaded

    import pytest

    os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # they may need select.epoll
    sys.modules["trio"] = None  # type: ignore[assignment]  # httpx looks for it, and it for epoll
    sysconfig.get_config_vars()  # from a file that is named after the real platform
    sys.platform = "darwin"
    outcome = pytest.main(sys.argv[1:])
    print(f"{full_syncs} syncs by F_FULLFSYNC")
    sys.exit(int(outcome) or (0 if full_syncs else 100))
