"""The table of the mirror: some values are unreadable, others are known only after `refresh`."""

from collections.abc import Awaitable, Callable, Iterable

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.metadata_table import MetadataTable
from managed_ledger.storage.operations import Put, Remove


class MirrorTable(MetadataTable):
    def __init__(
        self,
        submit: Callable[[Put | Remove], None],
        refresh: Callable[[str], Awaitable[None]],
        release: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        super().__init__(submit)
        self._refresh = refresh
        self._release = release
        self._unreadable: dict[str, str] = {}

    def get(self, key: str) -> Versioned | None:
        """The durable value. Raises CorruptStorage if it is in a format that this version cannot
        read.
        """
        if (why := self._unreadable.get(key)) is not None:
            raise CorruptStorage(why)
        return super().get(key)

    def known(self, key: str) -> Versioned | None:
        """As `get`, but does not raise: an unreadable value is empty."""
        return super().get(key)

    def version(self, key: str) -> int | None:
        found = super().get(key)
        return None if found is None else found.version

    async def refresh(self, prefix: str) -> None:
        await self._refresh(prefix)

    async def release(self, keys: Iterable[str]) -> None:
        await self._release(keys)

    def set_unreadable(self, key: str, why: str | None) -> None:
        """Set why the value is unreadable; None: it is readable."""
        if why is None:
            self._unreadable.pop(key, None)
        else:
            self._unreadable[key] = why
