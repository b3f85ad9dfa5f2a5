"""A disk that guarantees only what POSIX guarantees.

Writes can be read at once, but only `fdatasync` (bytes and length) and `sync_folder` (names) make
them durable. At a power cut, each write since then survives, is lost, or is torn. Of a torn write,
any subset of its 512-byte sectors is on the disk; the others contain what was there before (zeros
in a new part). The file's length is any that it has had since the sync. Each unsynced creation,
renaming and unlinking happened or did not. When only the process is killed, the page cache
survives, and with it all writes, but they are not durable: a later power cut may still take them.

`SimulatedDisk` is the platter. `mount()` gives a process its handle on it, which implements
`managed_ledger.storage.embedded.disk.Disk` and dies with the process.
"""

import errno
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from managed_ledger.errors import DirectoryInUse
from pybroker.simulation.events import Events
from pybroker.simulation.node import SimulatedCrash

SECTOR: Final = 512


@dataclass(slots=True)
class Change:
    """One unsynced write or truncation, with the data to undo it."""

    offset: int
    data: bytes  # empty for a truncation to `offset`
    overwritten: bytes
    old_size: int

    @property
    def is_truncation(self) -> bool:
        return not self.data


@dataclass(slots=True)
class Inode:
    content: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        overwritten = bytes(self.content[offset : offset + len(data)])
        self.unsynced.append(Change(offset, data, overwritten, len(self.content)))
        self._put(offset, data)

    def truncate(self, size: int) -> None:
        removed = bytes(self.content[size:])
        self.unsynced.append(Change(size, b"", removed, len(self.content)))
        self._resize(size)

    def lose_power(self, rng: random.Random) -> None:
        """Decides which unsynced changes are on the platter."""
        changes, self.unsynced = self.unsynced, []
        if not changes:
            return
        sizes = [len(self.content)] + [change.old_size for change in changes]
        for change in reversed(changes):
            self._undo(change)
        for change in changes:
            self._survive(change, rng)
        if rng.random() < 0.3:
            self._resize(rng.choice(sizes))

    def _survive(self, change: Change, rng: random.Random) -> None:
        fate = rng.choice(("kept", "lost", "torn"))
        if fate == "lost":
            return
        if change.is_truncation:
            self._resize(change.offset)
            return
        for start, end in _sectors(change):
            if fate == "kept" or rng.random() < 0.5:
                self._put(start, change.data[start - change.offset : end - change.offset])

    def _undo(self, change: Change) -> None:
        self._put(change.offset, change.overwritten)
        self._resize(change.old_size)

    def _put(self, offset: int, data: bytes) -> None:
        if data and offset > len(self.content):
            self._resize(offset)
        self.content[offset : offset + len(data)] = data

    def _resize(self, size: int) -> None:
        missing = size - len(self.content)
        if missing > 0:
            self.content.extend(bytes(missing))
        else:
            del self.content[size:]


def _sectors(change: Change) -> list[tuple[int, int]]:
    """The parts of a write, each of which may reach the platter or not."""
    end = change.offset + len(change.data)
    edges = [change.offset, *range((change.offset // SECTOR + 1) * SECTOR, end, SECTOR), end]
    return list(itertools.pairwise(edges))


Names = dict[str, Inode]


@dataclass(frozen=True, slots=True)
class Renaming:
    """An unsynced change of a folder: `old` is None for a creation, `new` for an unlinking."""

    old: str | None
    new: str | None
    inode: Inode

    def apply(self, names: Names) -> None:
        if self.old is not None and names.get(self.old) is self.inode:
            del names[self.old]
        if self.new is not None:
            names[self.new] = self.inode

    def touches(self, folder: str) -> bool:
        return folder in {_folder(name) for name in (self.old, self.new) if name is not None}


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


class SimulatedDisk:
    """The platter of one machine. Callers switch faults on and off between operations."""

    def __init__(self, world: Events, name: str = "disk") -> None:
        self.world = world
        self.rng = world.stream(name)
        self.names: Names = {}
        self.new_inode: Callable[[], Inode] = Inode
        self.operations = 0
        self.capacity_bytes: int | None = None  # None: it never fills up
        self.usual_capacity_bytes: int | None = None  # the value to which `make_room` returns
        self.sync_fails = False
        self.slow_until = 0.0  # virtual seconds; every sync stalls until then
        self.descriptors_out = False  # nothing can be opened or created
        self.log: list[str] | None = None  # set to [] to record every operation
        self._durable_names: Names = {}
        self._unsynced_names: list[Renaming] = []
        self._crash_at: int | None = None
        self._on_crash: Callable[[], None] | None = None
        self._mounted: Mount | None = None

    def mount(self) -> "Mount":
        """A handle for a newly started process. The handle of the process before it is dead."""
        self.unmount()
        self._mounted = Mount(self)
        return self._mounted

    def unmount(self) -> None:
        if self._mounted is not None:
            self._mounted.dead = True
        self._mounted = None
        self._crash_at = None

    def crash_after(self, operations: int, crash: Callable[[], None]) -> None:
        """Calls `crash` just before the n-th operation from now; it must end the process."""
        self._crash_at = self.operations + operations
        self._on_crash = crash

    def spare(self) -> None:
        """Cancels a crash that has not happened yet."""
        self._crash_at = None

    def lose_power(self) -> None:
        """Cuts the power: decides about each unsynced change."""
        self.unmount()
        names = dict(self._durable_names)
        changes, self._unsynced_names = self._unsynced_names, []
        # Most file systems apply changes of names in order, but POSIX does not require it: both
        # happen.
        in_order = self.rng.random() < 0.5
        kept = self.rng.randint(0, len(changes))
        for index, change in enumerate(changes):
            if index < kept if in_order else self.rng.random() < 0.5:
                change.apply(names)
        self.names, self._durable_names = names, dict(names)
        for inode in {id(inode): inode for inode in names.values()}.values():
            inode.lose_power(self.rng)

    def copy(self) -> dict[str, bytes]:
        """All files. Call it while no process writes."""
        return {name: bytes(inode.content) for name, inode in self.names.items()}

    def put_back(self, copy: dict[str, bytes]) -> None:
        """Replaces all files by these, durably."""
        self.unmount()
        self.names = {name: self.new_inode() for name in copy}
        for name, inode in self.names.items():
            inode.write(0, copy[name])
            inode.unsynced.clear()
        self._durable_names, self._unsynced_names = dict(self.names), []

    def before_operation(self, operation: str, name: str, seconds: float) -> None:
        """Counts an operation, adds its time, and crashes if a crash is due."""
        self.operations += 1
        weather = self.world.weather
        self.world.job_cost_s += seconds * (0.5 + self.rng.random())
        if weather.disk_stall_chance and self.rng.random() < weather.disk_stall_chance:
            self.world.job_cost_s += weather.disk_stall_s * self.rng.random()
        if seconds and self.world.now < self.slow_until:
            self.world.job_cost_s += weather.disk_stall_s * self.rng.random()
        if self.log is not None:
            self.log.append(f"{self.operations} {operation} {name}")
        if self._crash_at is not None and self.operations >= self._crash_at:
            self._crash()

    def _crash(self) -> NoReturn:
        crash, self._on_crash, self._crash_at = self._on_crash, None, None
        if crash is not None:
            crash()
        self.unmount()
        raise SimulatedCrash

    def fill_up(self, room_bytes: int) -> None:
        """Leaves only `room_bytes` free."""
        self.capacity_bytes = self.used_bytes() + room_bytes

    def make_room(self) -> None:
        self.capacity_bytes = self.usual_capacity_bytes

    def room_for(self, size: int) -> bool:
        return self.capacity_bytes is None or self.used_bytes() + size <= self.capacity_bytes

    def free_bytes(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.names.values())

    def change_names(self, change: Renaming) -> None:
        change.apply(self.names)
        self._unsynced_names.append(change)

    def sync_names(self, folder: str) -> None:
        staying = []
        for change in self._unsynced_names:
            if change.touches(folder):
                change.apply(self._durable_names)
            else:
                staying.append(change)
        self._unsynced_names = staying


class Mount:
    """The disk as one process sees it; implements `managed_ledger.storage.embedded.disk.Disk`."""

    def __init__(self, platter: SimulatedDisk) -> None:
        self._platter = platter
        self._locked = False
        self.dead = False

    def _do(self, operation: str, name: str, seconds: float | None = None) -> SimulatedDisk:
        if self.dead:
            raise SimulatedCrash
        write_s = self._platter.world.weather.disk_write_s
        self._platter.before_operation(operation, name, write_s if seconds is None else seconds)
        return self._platter

    def _do_with_descriptor(
        self, operation: str, name: str, seconds: float | None = None
    ) -> SimulatedDisk:
        disk = self._do(operation, name, seconds)
        if disk.descriptors_out:
            raise OSError(errno.EMFILE, "too many open files", name)
        return disk

    def create(self, name: str) -> "File":
        disk = self._do_with_descriptor("create", name)
        if name in disk.names:
            raise FileExistsError(errno.EEXIST, "the file exists", name)
        inode = disk.new_inode()
        disk.change_names(Renaming(None, name, inode))
        return File(self, name, inode)

    def open(self, name: str) -> "File":
        inode = self._do_with_descriptor("open", name).names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return File(self, name, inode)

    def names(self, folder: str) -> list[str]:
        names = self._do_with_descriptor("names", folder).names
        return sorted(name for name in names if _folder(name) == folder)

    def rename(self, old: str, new: str) -> None:
        disk = self._do("rename", old)
        if old not in disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        disk.change_names(Renaming(old, new, disk.names[old]))

    def unlink(self, name: str) -> None:
        disk = self._do("unlink", name)
        if name in disk.names:
            disk.change_names(Renaming(name, None, disk.names[name]))

    def sync_folder(self, folder: str) -> None:
        sync_s = self._platter.world.weather.disk_sync_s
        self._do_with_descriptor("sync_folder", folder, sync_s).sync_names(folder)

    def free_bytes(self) -> int | None:
        return self._platter.free_bytes()

    def lock(self) -> None:
        if self._locked:
            raise DirectoryInUse("the simulated data directory is locked already")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False


class File:
    """An open file; implements `managed_ledger.storage.embedded.disk.DiskFile`."""

    def __init__(self, mount: Mount, name: str, inode: Inode) -> None:
        self._mount = mount
        self._name = name
        self._inode = inode

    def pwritev(self, parts: Sequence[bytes], offset: int) -> None:
        disk = self._mount._do("write", self._name)
        data = b"".join(parts)
        if not disk.room_for(len(data)):
            written = disk.rng.randint(0, len(data))
            self._inode.write(offset, data[:written])
            raise OSError(errno.ENOSPC, "no space left on the device", self._name)
        self._inode.write(offset, data)

    def pwritev_uncached(self, parts: Sequence[bytes], offset: int) -> None:
        self.pwritev(parts, offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._mount._do("read", self._name, 0.0)
        return bytes(self._inode.content[offset : offset + size])

    def fdatasync(self) -> None:
        disk = self._mount._do(
            "fdatasync", self._name, self._mount._platter.world.weather.disk_sync_s
        )
        if disk.sync_fails:
            raise OSError(errno.EIO, "input/output error", self._name)
        self._inode.unsynced.clear()

    def truncate(self, size: int) -> None:
        self._mount._do("truncate", self._name)
        self._inode.truncate(size)

    def size(self) -> int:
        self._mount._do("size", self._name, 0.0)
        return len(self._inode.content)

    def close(self) -> None:
        """Does not sync."""
