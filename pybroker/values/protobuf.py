"""Decodes values of a PROTOBUF_NATIVE schema, whose definition has the descriptors of its messages.

Source: Java client, ProtobufNativeSchemaData: JSON with `fileDescriptorSet` in base64 and the name
of the root message. A value is decoded as a whole, so larger ones than `MOST_BYTES` are not.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pybroker.base.json_text import json_of

MOST_BYTES: Final = 16 * 1024
_MOST_DEFINITION: Final = 256 * 1024  # bytes
_MOST_FILES: Final = 200


class Decode:
    """Decodes values of one schema. Raises ValueError for a definition that cannot be used."""

    def __init__(self, definition: str) -> None:
        # Loaded by the first such topic only.
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        if len(definition) > _MOST_DEFINITION:
            raise ValueError("the definition is too large")
        try:
            said = json_of(definition)
            files = descriptor_pb2.FileDescriptorSet.FromString(
                base64.b64decode(said["fileDescriptorSet"], validate=True)
            ).file
            if len(files) > _MOST_FILES:
                raise ValueError("the definition has too many files")
            pool = descriptor_pool.DescriptorPool()
            for file in _in_order(files):
                pool.Add(file)
            root = pool.FindMessageTypeByName(said["rootMessageTypeName"])
        except Exception as error:  # protobuf raises TypeError, KeyError and errors of its own
            raise ValueError(f"the definition is none of Protobuf: {error}") from None
        self._message = message_factory.GetMessageClass(root)

    def __call__(self, data: bytes) -> dict[str, Any]:
        """The fields by their names. Raises ValueError."""
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError

        if len(data) > MOST_BYTES:
            raise ValueError("the value is too large")
        try:
            message = self._message.FromString(data)
            found: dict[str, Any] = json_format.MessageToDict(
                message, preserving_proto_field_name=True
            )
        except (DecodeError, TypeError, json_format.Error) as error:
            raise ValueError(f"this is no value of the schema: {error}") from None
        return found


def _in_order(files: Iterable[Any]) -> Iterator[Any]:
    """Each file after those that it imports. Raises ValueError if one is missing."""
    left = {file.name: file for file in files}
    while left:
        ready = [file for file in left.values() if not left.keys() & set(file.dependency)]
        if not ready:
            raise ValueError("its files import each other in a circle")
        for file in ready:
            del left[file.name]
        yield from ready
