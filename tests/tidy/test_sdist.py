"""`make release` and its normalized source distribution."""

import io
import tarfile

from normalize_sdist import normalized


def test_an_sdist_has_the_same_bytes_whenever_and_wherever_it_is_built() -> None:
    sources = {"p/a.py": b"one", "p/b.py": b"two"}
    first = _sdist(sources, mtime=1_700_000_000, mode=0o600, owner="root")
    second = _sdist(dict(reversed(sources.items())), mtime=1_800_000_000, mode=0o664, owner="ada")
    assert first != second
    assert normalized(first, 1_750_000_000) == normalized(second, 1_750_000_000)
    with tarfile.open(fileobj=io.BytesIO(normalized(first, 1_750_000_000))) as archive:
        files = [each for each in archive if each.isfile()]
        assert {each.name: _content(archive, each) for each in files} == sources
        assert {(each.mtime, each.mode) for each in files} == {(1_750_000_000, 0o644)}


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    found = archive.extractfile(member)
    assert found is not None
    return found.read()


def _sdist(sources: dict[str, bytes], *, mtime: int, mode: int, owner: str) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        folder = tarfile.TarInfo("p")
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, mode | 0o100, mtime
        archive.addfile(folder)
        for name, content in sources.items():
            file = tarfile.TarInfo(name)
            file.size, file.mtime, file.mode, file.uname = len(content), mtime, mode, owner
            archive.addfile(file, io.BytesIO(content))
    return into.getvalue()
