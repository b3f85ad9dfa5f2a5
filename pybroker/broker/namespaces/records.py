"""Small JSON records by name in the metadata store, written only by operators.

A record holds everything that belongs to its name, so that no key combines two names.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from managed_ledger.storage.backend import MetadataStore
from pybroker.base.errors import InvalidTopicName
from pybroker.broker.namespaces.tenants import NotFound

_NAME: Final = re.compile(r"[-=:.\w]{1,255}", re.ASCII)  # what Apache Pulsar allows


class Records:
    """The records below one prefix; `what` is their name in errors."""

    def __init__(self, metadata: MetadataStore, prefix: str, what: str) -> None:
        self._metadata = metadata
        self._prefix = prefix
        self._what = what
        self._changing = asyncio.Lock()

    def names(self) -> list[str]:
        return [key.removeprefix(self._prefix) for key in self._metadata.keys(self._prefix)]

    def find(self, name: str) -> dict[str, Any] | None:
        stored = self._metadata.get(self._prefix + name)
        return None if stored is None else dict(json.loads(stored.value))

    def get(self, name: str) -> dict[str, Any]:
        """Raises NotFound if there is no record of this name."""
        if (record := self.find(name)) is None:
            raise NotFound(f"{self._what} {name} does not exist")
        return record

    async def put(self, name: str, record: Mapping[str, Any]) -> None:
        """Durable when it returns. The caller has checked the name."""
        await self._metadata.put(self._prefix + name, json.dumps(record).encode())

    async def change(
        self, name: str, change: Callable[[dict[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        """Replaces the record by a function of the current one (None if missing). Changes run one
        at a time.
        """
        async with self._changing:
            await self.put(name, change(self.find(name)))

    async def delete(self, name: str) -> None:
        """Raises NotFound if there is no record of this name."""
        async with self._changing:
            self.get(name)
            await self._metadata.delete(self._prefix + name)


def check_name(name: str, what: str) -> None:
    """Raises InvalidTopicName if it has characters other than letters, digits and -=:._"""
    if not _NAME.fullmatch(name):
        raise InvalidTopicName(
            f"{name[:200]!r} is not a valid {what.lower()} name: use only letters, digits and -=:._"
        )
