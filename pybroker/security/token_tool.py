"""`pybroker tokens`: keys and tokens, under the names and options of `pulsar tokens`.

Secrets go to files readable only by their owner, or to stdout by default.
"""

import argparse
import base64
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pybroker.base.arguments import TIME_UNITS_S
from pybroker.security.keys import KeyFailure, missing, private_key, public_key, read_source
from pybroker.security.token import (
    ALGORITHMS,
    algorithm_family,
    check_key_family,
    check_times,
    checked_claims,
    jws,
    secret_key,
)

_CURVES: Final = {"256": "SECP256R1", "384": "SECP384R1", "512": "SECP521R1"}


def add_tokens(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    make = commands.add_parser(
        "create-secret-key", help="create a secret key that signs and verifies"
    )
    _algorithm(make, "HS256")
    make.add_argument("-o", "--output", metavar="FILE", help="file to write to (default: stdout)")
    make.add_argument("-b", "--base64", action="store_true", help="write the key in base64")
    make.set_defaults(run=run, work=_create_secret_key)

    pair = commands.add_parser("create-key-pair", help="create a private and a public key")
    _algorithm(pair, "RS256")
    pair.add_argument("--output-private-key", metavar="FILE", required=True)
    pair.add_argument("--output-public-key", metavar="FILE", required=True)
    pair.set_defaults(run=run, work=_create_key_pair)

    create = commands.add_parser("create", help="create a token for a role", add_help=False)
    create.add_argument("--help", action="help", help="show this help")
    _algorithm(create, None)
    create.add_argument("-s", "--subject", required=True, help="role that the token names")
    create.add_argument(
        "-e",
        "--expiry-time",
        metavar="TIME",
        help="lifetime such as 1h, 3d, 10y (default: no expiry)",
    )
    create.add_argument(
        "-o", "--output", metavar="FILE", help="file to write or replace (default: stdout)"
    )
    create.add_argument("-h", "--headers", metavar="NAME=VALUE", action="append", default=[])
    _one_key(create, "-pk", "--private-key")
    create.set_defaults(run=run, work=_create)

    show = commands.add_parser("show", help="show a token's contents without verifying it")
    _token(show)
    show.set_defaults(run=run, work=_show)

    validate = commands.add_parser("validate", help="verify a token with a key")
    _algorithm(validate, None)
    _token(validate)
    _one_key(validate, "-pk", "--public-key")
    validate.set_defaults(run=run, work=_validate)


def _algorithm(parser: argparse.ArgumentParser, default: str | None) -> None:
    said = default or "HS256 with a secret key, else RS256"
    parser.add_argument(
        "-a", "--signature-algorithm", choices=ALGORITHMS, default=default, help=f"default: {said}"
    )


def _one_key(parser: argparse.ArgumentParser, short: str, long: str) -> None:
    keys = parser.add_mutually_exclusive_group(required=True)
    keys.add_argument("-sk", "--secret-key", metavar="KEY", help="file:, data:, a path, or base64")
    keys.add_argument(short, long, metavar="KEY", help="key in one of the same forms")


def _token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "token",
        nargs="?",
        help="default: --stdin, --token-file or the variable TOKEN",
    )
    parser.add_argument("-i", "--stdin", action="store_true")
    parser.add_argument("-f", "--token-file", metavar="FILE")


# -- commands


def run(options: argparse.Namespace) -> int:
    try:
        options.work(options)
    except (KeyFailure, OSError) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return 1
    return 0


def _create_secret_key(options: argparse.Namespace) -> None:
    if algorithm_family(options.signature_algorithm) != "HS":
        raise KeyFailure("a secret key is for HS256, HS384 or HS512; see create-key-pair")
    key = secrets.token_bytes(int(options.signature_algorithm[2:]) // 8)
    if options.base64:
        key = base64.b64encode(key)
    if options.output:
        _write_new(options.output, key)
    else:
        sys.stdout.buffer.write(key)


def _create_key_pair(options: argparse.Namespace) -> None:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise missing("cryptography", "creating a key pair") from None
    key = _new_private_key(options.signature_algorithm)
    encoding, formats = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, formats, serialization.NoEncryption())
    public = key.public_key().public_bytes(
        encoding, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write_new(options.output_private_key, private)
    _write_new(options.output_public_key, public, mode=0o644)


def _new_private_key(algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    family = algorithm_family(algorithm)
    if family == "HS":
        raise KeyFailure("HS… signs with a secret key; see create-secret-key")
    if family == "ES":
        return ec.generate_private_key(getattr(ec, _CURVES[algorithm[2:]])())
    return rsa.generate_private_key(65537, 2048)


def _write_new(path: str, data: bytes, mode: int = 0o600) -> None:
    """Never overwrites: the file may be the only copy of a key."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _replace(path: str, data: bytes) -> None:
    """Unlike a key, a token can be created again. Only its owner may ever read it."""
    made = f"{path}.new"
    Path(made).unlink(missing_ok=True)
    _write_new(made, data)
    os.replace(made, path)


def _create(options: argparse.Namespace) -> None:
    claims: dict[str, Any] = {"sub": options.subject}
    if options.expiry_time:
        claims["exp"] = int(time.time()) + _seconds(options.expiry_time)
    key, algorithm = _signing_key(options)
    headers = dict(_header(text) for text in options.headers)
    payload = json.dumps(claims, separators=(",", ":")).encode()
    token = jws().encode(payload, key, algorithm, headers or None)
    if options.output:
        _replace(options.output, f"{token}\n".encode())
    else:
        print(token)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name == "alg":
        raise KeyFailure(f"--headers {text[:80]} is not name=value")
    return name, value


def _seconds(text: str) -> int:
    """Parses a number and a unit; a number alone means seconds, as in Apache Pulsar."""
    unit = text[-1:].lower()
    number, factor = (text[:-1], TIME_UNITS_S[unit]) if unit in TIME_UNITS_S else (text, 1)
    if not number.isdecimal() or not 0 < int(number) * factor < 10**11:
        raise KeyFailure(f"--expiry-time {text[:40]} is not a lifetime; use 30m, 12h, 3d or 10y")
    return int(number) * factor


def _signing_key(options: argparse.Namespace) -> tuple[Any, str]:
    return _key(options, options.private_key, "--private-key", private_key)


def _verifying_key(options: argparse.Namespace) -> tuple[Any, str]:
    return _key(options, options.public_key, "--public-key", public_key)


def _key(
    options: argparse.Namespace, source: str, option: str, read: Callable[[bytes, str], Any]
) -> tuple[Any, str]:
    """The key, and the algorithm that it is for."""
    if options.secret_key:
        return _secret(options), _secret_algorithm(options)
    algorithm = options.signature_algorithm or "RS256"
    key = read(read_source(source, option), option)
    check_key_family(key, algorithm_family(algorithm), option)
    return key, algorithm


def _secret(options: argparse.Namespace) -> bytes:
    return secret_key(read_source(options.secret_key, "--secret-key"))


def _secret_algorithm(options: argparse.Namespace) -> str:
    algorithm: str = options.signature_algorithm or "HS256"
    if algorithm_family(algorithm) != "HS":
        raise KeyFailure(f"{algorithm} does not sign with a secret key")
    return algorithm


def _show(options: argparse.Namespace) -> None:
    token = _chosen_token(options)
    try:
        header = jws().get_unverified_header(token)
        payload = jws().decode(token, options={"verify_signature": False})
        claims = json.loads(payload)
    except Exception as error:  # PyJWT's, or JSON's
        raise KeyFailure(f"this is not a token: {error}") from None
    print(json.dumps({k: v for k, v in header.items() if k != "typ"}, separators=(",", ":")))
    print("---")
    print(json.dumps(claims, separators=(",", ":")))


def _validate(options: argparse.Namespace) -> None:
    token = _chosen_token(options)
    key, algorithm = _verifying_key(options)
    try:
        claims = checked_claims(json.loads(jws().decode(token, key, algorithms=[algorithm])))
        check_times(claims, int(time.time() * 1000))
    except Exception as error:  # PyJWT's, JSON's, or those of a broker's checks
        raise KeyFailure(f"the token is not valid: {error}") from None
    print(json.dumps(claims, separators=(",", ":")))


def _chosen_token(options: argparse.Namespace) -> str:
    if options.token:
        return str(options.token)
    if options.stdin:
        return sys.stdin.read().strip()
    if options.token_file:
        return Path(options.token_file).read_text().strip()
    if os.environ.get("TOKEN"):
        return os.environ["TOKEN"]
    raise KeyFailure("no token given: pass it, or use --stdin or --token-file, or set TOKEN")
