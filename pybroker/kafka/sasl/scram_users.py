"""Users with SCRAM passwords, in the metadata store: a record per user.

`kafka-configs --alter --entity-type users` writes them; only superusers may.
"""

import base64
import json
from typing import Final
from urllib.parse import quote, unquote

from managed_ledger.storage.backend import MetadataStore
from pybroker.kafka.sasl.scram import Mechanism, ScramCredential

PREFIX: Final = "/kafka/scram-users/"


class StoredScramUsers:
    """Implements ScramUsers."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def users(self) -> list[str]:
        keys = self._metadata.keys(PREFIX)
        return sorted(unquote(key.removeprefix(PREFIX)) for key in keys)

    def credential(self, user: str, mechanism: Mechanism) -> ScramCredential | None:
        return self.credentials(user).get(mechanism)

    def credentials(self, user: str) -> dict[Mechanism, ScramCredential]:
        """Empty for an unknown user. Raises CorruptStorage."""
        stored = self._metadata.get(_key(user))
        record = {} if stored is None else json.loads(stored.value)
        return {Mechanism[name]: _read(value) for name, value in record.items()}

    async def put(self, user: str, credentials: dict[Mechanism, ScramCredential]) -> None:
        """Replace what is known of the user; without credentials, forget the user. Durable when
        this returns.
        """
        if not credentials:
            await self._metadata.delete(_key(user))
            return
        record = {mechanism.name: _written(each) for mechanism, each in credentials.items()}
        await self._metadata.put(_key(user), json.dumps(record).encode())


def _key(user: str) -> str:
    return PREFIX + quote(user, safe="")


def _written(credential: ScramCredential) -> dict[str, str | int]:
    return {
        "salt": base64.b64encode(credential.salt).decode(),
        "iterations": credential.iterations,
        "storedKey": base64.b64encode(credential.stored_key).decode(),
        "serverKey": base64.b64encode(credential.server_key).decode(),
    }


def _read(value: dict[str, str]) -> ScramCredential:
    salt, stored, server = (
        base64.b64decode(value[name]) for name in ("salt", "storedKey", "serverKey")
    )
    return ScramCredential(salt, int(value["iterations"]), stored, server)
