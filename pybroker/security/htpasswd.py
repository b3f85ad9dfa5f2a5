"""An .htpasswd file: one `user:hash` per line; bcrypt, apr1 (salted MD5, a thousand rounds) and
SHA-1.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pybroker.security.keys import KeyFailure, missing

_BCRYPT: Final = ("$2y$", "$2b$", "$2a$")
_BCRYPT_BYTES: Final = 72  # the rest of a password is ignored, as with Apache's htpasswd
_NOBODYS_SALT_AND_HASH: Final = "." * 53
_APR1: Final = "$apr1$"
_SHA: Final = "{SHA}"
_ITOA64: Final = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_APR1_ORDER: Final = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))


def parse_htpasswd(data: bytes) -> dict[str, str]:
    """The hash of each user's password. Raises KeyFailure."""
    users: dict[str, str] = {}
    for number, user, digest in _lines(data):
        if not digest.startswith((*_BCRYPT, _APR1, _SHA)):
            raise KeyFailure(
                f"basicAuthConf, line {number}: the password of {user[:80]!r} is not hashed with "
                "bcrypt, apr1 or SHA; write it with: htpasswd -B"
            )
        if digest.startswith(_BCRYPT):
            bcrypt()
        users[user] = digest
    if not users:
        raise KeyFailure("basicAuthConf contains no users")
    return users


def _lines(data: bytes) -> Iterator[tuple[int, str, str]]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise KeyFailure("basicAuthConf is not UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if line and not line.startswith("#"):
            user, colon, digest = line.partition(":")
            if not colon or not user:
                raise KeyFailure(f"basicAuthConf, line {number}: the line is not user:hash")
            yield number, user, digest


def bcrypt() -> Any:
    try:
        import bcrypt
    except ImportError:
        raise missing("bcrypt", "a password hashed with bcrypt") from None
    return bcrypt


def matches(password: bytes, digest: str) -> bool:
    """Takes as long as the kind of hash requires: 100 ms with bcrypt."""
    if digest.startswith(_BCRYPT):
        return _matches_bcrypt(password, digest)
    if digest.startswith(_APR1):
        salt = digest.removeprefix(_APR1).partition("$")[0]
        return hmac.compare_digest(apr1(password, salt).encode(), digest.encode())
    sha = base64.b64encode(hashlib.sha1(password).digest())
    return hmac.compare_digest(sha, digest.removeprefix(_SHA).encode())


# -- the cost of a comparison


def dearest(digests: Iterable[str]) -> str:
    """The hash whose comparison takes longest."""
    return max(digests, key=_cost)


def padding(digest: str | None, most: str) -> list[str]:
    """Further hashes to compare a password with, so that the whole takes as long as with `most`.

    Each step of bcrypt's cost doubles the work: 10 plus an extra 10 and 11 equals 12.
    """
    if digest is None:
        return [most]
    (kind, rounds), (most_kind, most_rounds) = _cost(digest), _cost(most)
    if kind != most_kind:
        return [most]
    return [f"$2b${each:02}${_NOBODYS_SALT_AND_HASH}" for each in range(rounds, most_rounds)]


def _cost(digest: str) -> tuple[int, int]:
    """A sort key: the kind of hash, then its cost. The kinds differ widely in cost."""
    if digest.startswith(_BCRYPT):
        rounds = digest[4:6]
        return 2, int(rounds) if rounds.isdigit() else 0
    return (1 if digest.startswith(_APR1) else 0), 0


def _matches_bcrypt(password: bytes, digest: str) -> bool:
    try:
        return bool(bcrypt().checkpw(password[:_BCRYPT_BYTES], digest.encode()))
    except ValueError:  # a password with a zero byte, or a truncated hash
        return False


def apr1(password: bytes, salt: str) -> str:
    """Apache's variant of MD5-crypt. Source: apr_md5.c."""
    salted = salt[:8].encode()
    inner = hashlib.md5(password + salted + password).digest()
    outer = hashlib.md5(password + _APR1.encode() + salted)
    outer.update((inner * (len(password) // 16 + 1))[: len(password)])
    length = len(password)
    while length:
        outer.update(b"\0" if length & 1 else password[:1])
        length >>= 1
    digest = outer.digest()
    for turn in range(1000):
        digest = _apr1_round(turn, password, salted, digest)
    return f"{_APR1}{salted.decode()}${_apr1_text(digest)}"


def _apr1_round(turn: int, password: bytes, salt: bytes, digest: bytes) -> bytes:
    pieces = [password if turn & 1 else digest]
    if turn % 3:
        pieces.append(salt)
    if turn % 7:
        pieces.append(password)
    pieces.append(digest if turn & 1 else password)
    return hashlib.md5(b"".join(pieces)).digest()


def _apr1_text(digest: bytes) -> str:
    text = [_to64(digest[a] << 16 | digest[b] << 8 | digest[c], 4) for a, b, c in _APR1_ORDER]
    return "".join(text) + _to64(digest[11], 2)


def _to64(value: int, characters: int) -> str:
    return "".join(_ITOA64[value >> (6 * at) & 63] for at in range(characters))
