"""Rewrites a source distribution so that its bytes depend on the sources only.

setuptools keeps times, owners and modes of the checkout's files, and adds the time of the build.
"""

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path


def normalized(sdist: bytes, epoch: int) -> bytes:
    """The same files, sorted, with `epoch` (seconds) as their time and root as their owner."""
    unzipped = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist), mode="r:gz") as old,
        tarfile.open(fileobj=unzipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda each: each.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(unzipped.getvalue(), compresslevel=9, mtime=epoch)


def main() -> None:
    """Arguments: the files. SOURCE_DATE_EPOCH is the time."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in map(Path, sys.argv[1:]):
        path.write_bytes(normalized(path.read_bytes(), epoch))


if __name__ == "__main__":
    main()
