"""What a bookie registers in ZooKeeper: where it serves its protocol.

A bookie's id is its address, unless it is configured (`bookieId`); ledgers name bookies by id.

Source: BookieServiceInfoFormat in DataFormats.proto; DefaultBookieAddressResolver.
"""

from typing import Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.protobuf import VARINT, fields

_ENDPOINTS: Final = 6
_PORT, _HOST, _PROTOCOL = 2, 3, 4
_BOOKIES_PROTOCOL: Final = b"bookie-rpc"
Address = tuple[str, int]


def registered_address(value: bytes) -> Address | None:
    """The address in the value of a bookie's node; None if there is none, as before BookKeeper
    4.11.
    """
    try:
        for endpoint in fields(value, "a bookie's registration"):
            if endpoint.number == _ENDPOINTS and (found := _endpoint(endpoint.blob)) is not None:
                return found
    except (CorruptStorage, UnicodeDecodeError):
        pass  # written by hand, or by another version
    return None


def _endpoint(value: bytes) -> Address | None:
    port, texts = 0, dict[int, bytes]()
    for field in fields(value, "an endpoint of a bookie"):
        if field.wire == VARINT:
            port = field.value if field.number == _PORT else port
        else:
            texts[field.number] = field.blob
    if texts.get(_PROTOCOL) != _BOOKIES_PROTOCOL or not (port and texts.get(_HOST)):
        return None
    return texts[_HOST].decode(), port
