"""Supplies the RSA keys of end-to-end encryption."""

from collections.abc import Mapping
from pathlib import Path


class CryptoKeyReader:
    """RSA keys in PEM files. Subclass it to look keys up by name."""

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        self._public_key_path = public_key_path
        self._private_key_path = private_key_path

    def public_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """PEM; for producers."""
        return Path(self._public_key_path).read_bytes()

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """PEM; for consumers."""
        return Path(self._private_key_path).read_bytes()
