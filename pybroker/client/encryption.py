"""End-to-end encryption, as the official clients do it.

A payload is encrypted with AES-GCM (the nonce is the metadata's encryption_param) after
compression; a batch is encrypted as a whole. The metadata contains the AES key, wrapped with OAEP
(SHA-1) once for each RSA key that may read it. Needs the package `cryptography`.
"""

import importlib
import logging
import os
from collections.abc import Sequence
from typing import Any, Final

from pybroker.client.crypto_keys import CryptoKeyReader
from pybroker.client.errors import CryptoError
from pybroker.client.options import ConsumerCryptoFailureAction
from pybroker.wire import pulsar_api_pb2 as pb

log = logging.getLogger("pybroker.client")

_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_MAX_KEYS: Final = 256


class _Library:
    """The parts of `cryptography` that are used."""

    def __init__(self) -> None:
        try:
            ciphers: Any = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ImportError as error:
            raise CryptoError(
                "Encryption needs the package cryptography: pip install 'pybroker[encryption]'"
            ) from error
        hashes: Any = importlib.import_module("cryptography.hazmat.primitives.hashes")
        padding: Any = importlib.import_module("cryptography.hazmat.primitives.asymmetric.padding")
        self.serialization: Any = importlib.import_module(
            "cryptography.hazmat.primitives.serialization"
        )
        self.aes_gcm: Any = ciphers.AESGCM
        self.oaep: Any = padding.OAEP(
            mgf=padding.MGF1(algorithm=hashes.SHA1()), algorithm=hashes.SHA1(), label=None
        )


class Decryption:
    """Decrypts a consumer's entries."""

    def __init__(
        self, reader: CryptoKeyReader | None, failure_action: ConsumerCryptoFailureAction
    ) -> None:
        """Raises CryptoError if there is a reader, but the cryptography package is missing."""
        self.failure_action = failure_action
        self._reader = reader
        self._library = None if reader is None else _Library()
        # AES ciphers by wrapped key: producers use a key for many messages.
        self._ciphers: dict[bytes, Any] = {}

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        """Raises CryptoError if there is no reader, or none of the message's keys fits."""
        if self._reader is None:
            raise CryptoError("it is encrypted, and there is no crypto_key_reader to decrypt it")
        trouble: Exception | None = None
        for key in metadata.encryption_keys:
            try:
                plain: bytes = self._cipher(key).decrypt(metadata.encryption_param, payload, None)
                return plain
            except Exception as error:  # From the key reader, the library, or a wrong key.
                trouble = error
                self._ciphers.pop(key.value, None)
        raise CryptoError(f"none of its keys can decrypt it: {trouble!r}") from trouble

    def _cipher(self, key: pb.EncryptionKeys) -> Any:
        cipher = self._ciphers.get(key.value)
        if cipher is None:
            assert self._library is not None and self._reader is not None
            described = {pair.key: pair.value for pair in key.metadata}
            pem = self._reader.private_key(key.key, described)
            private = self._library.serialization.load_pem_private_key(pem, None)
            cipher = self._library.aes_gcm(private.decrypt(key.value, self._library.oaep))
            if len(self._ciphers) >= _MAX_KEYS:
                self._ciphers.clear()
            self._ciphers[key.value] = cipher
        return cipher


class Encryption:
    """Encrypts a producer's payloads, with one AES key for its lifetime."""

    def __init__(self, reader: CryptoKeyReader | None, names: Sequence[str]) -> None:
        """Raises CryptoError, and the reader's errors."""
        if reader is None:
            raise CryptoError(
                "encryption_key is set: pass the crypto_key_reader that supplies the key"
            )
        library = _Library()
        data_key = os.urandom(_KEY_BYTES)
        self._cipher = library.aes_gcm(data_key)
        self._keys = []
        for name in names:
            public = library.serialization.load_pem_public_key(reader.public_key(name, {}))
            wrapped = public.encrypt(data_key, library.oaep)
            self._keys.append(pb.EncryptionKeys(key=name, value=wrapped))

    @property
    def overhead_bytes(self) -> int:
        """How many bytes encryption adds to an entry, at most."""
        return sum(key.ByteSize() + 8 for key in self._keys) + 64

    def encrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        """Returns the encrypted payload; adds the keys and the nonce to `metadata`."""
        nonce = os.urandom(_NONCE_BYTES)
        del metadata.encryption_keys[:]
        metadata.encryption_keys.extend(self._keys)
        metadata.encryption_param = nonce
        encrypted: bytes = self._cipher.encrypt(nonce, payload, None)
        return encrypted
