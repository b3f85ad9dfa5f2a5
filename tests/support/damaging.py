"""Random damage to the files of a data directory."""

import random
from collections.abc import Callable

from managed_ledger.storage.embedded.journal_format import SECTOR, decode_header
from managed_ledger.storage.embedded.journal_replay import Replay

Files = dict[str, bytes]


class FilesDisk:
    """The part of a Disk that a replay needs."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self._files if name.rpartition("/")[0] == folder)

    def open(self, name: str) -> "FilesFile":
        if name not in self._files:
            raise FileNotFoundError(name)
        return FilesFile(self._files[name])


class FilesFile:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, offset: int) -> bytes:
        return self._data[offset : offset + size]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


def counted(files: Files) -> Files:
    """The files that count, each up to the length that counts."""
    replay = Replay(FilesDisk(files))  # type: ignore[arg-type]
    replay.replay()
    found = {name: data for name, data in files.items() if name == "metadata/snapshot"}
    for generation in replay.journals:
        name = f"journal/{generation:010d}"
        found[name] = files[name]
    if replay.torn is not None:
        found[name] = found[name][: replay.torn.offset]
    for ledger_id, state in replay.ledgers.items():
        if state.flushed.file_bytes:
            name = f"ledgers/{ledger_id}"
            found[name] = files[name][: state.flushed.file_bytes]
    return found


def damaged(files: Files, rng: random.Random) -> tuple[str, Files]:
    """A description of the damage, and all files after it."""
    ways: list[Callable[[Files, random.Random], tuple[str, Files] | None]]
    ways = [_flipped, _truncated, _swapped, _missing, _lost, _misdirected]
    whole = counted(files)
    while True:
        if (done := rng.choice(ways)(whole, rng)) is not None:
            what, changed = done
            gone = whole.keys() - changed.keys()
            return what, {n: d for n, d in (files | changed).items() if n not in gone}


def _flipped(files: Files, rng: random.Random) -> tuple[str, Files] | None:
    name = rng.choice([name for name, data in files.items() if data])
    data = bytearray(files[name])
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} of {name} flipped", files | {name: bytes(data)}


def _truncated(files: Files, rng: random.Random) -> tuple[str, Files] | None:
    """Truncate a file, but no journal between two commits: that leaves a valid journal."""
    name = rng.choice([name for name, data in files.items() if data])
    size = rng.randrange(len(files[name]))
    if name.startswith("journal/"):
        size += 1
        if size >= len(files[name]) or decode_header(files[name], size) is not None:
            return None
    return f"{name} cut to {size} bytes", files | {name: files[name][:size]}


def _swapped(files: Files, rng: random.Random) -> tuple[str, Files] | None:
    if len(files) < 2:
        return None
    one, other = rng.sample(sorted(files), 2)
    if files[one] == files[other]:
        return None
    return f"{one} and {other} swapped", files | {one: files[other], other: files[one]}


def _missing(files: Files, rng: random.Random) -> tuple[str, Files] | None:
    """Remove a file, but no journal except the oldest: a missing newest journal goes unnoticed."""
    journals = sorted(name for name in files if name.startswith("journal/"))
    name = rng.choice(sorted(files))
    if name in journals[1:]:
        return None
    return f"{name} missing", {each: data for each, data in files.items() if each != name}


def _lost(files: Files, rng: random.Random) -> tuple[str, Files] | None:
    """Some sectors of a file read as zeros."""
    name = _written_in_part(files, rng)
    if name is None:
        return None
    start, end = _sectors(files[name], rng)
    return _changed(files, name, start, bytes(end - start), f"sectors {start} to {end} are lost in")


def _misdirected(files: Files, rng: random.Random) -> tuple[str, Files] | None:
    """What was to be in one place has been written to another one, too."""
    name = _written_in_part(files, rng)
    if name is None:
        return None
    start, end = _sectors(files[name], rng)
    other = rng.choice(sorted(files))
    at = rng.randrange(len(files[other]) // SECTOR + 1) * SECTOR
    data = files[other][at : at + end - start]
    return _changed(files, name, start, data, f"a part of {other} is at {start} in")


def _written_in_part(files: Files, rng: random.Random) -> str | None:
    """Any file but the last journal, whose end may be torn."""
    last = max((name for name in files if name.startswith("journal/")), default="")
    names = [name for name, data in sorted(files.items()) if data and name != last]
    return rng.choice(names) if names else None


def _sectors(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange((len(data) - 1) // SECTOR + 1) * SECTOR
    return start, min(len(data), start + SECTOR * rng.choice((1, 1, 8, 128)))


def _changed(files: Files, name: str, at: int, data: bytes, what: str) -> tuple[str, Files] | None:
    changed = files[name][:at] + data + files[name][at + len(data) :]
    return None if changed == files[name] else (f"{what} {name}", files | {name: changed})
