"""Message ids as visitors see them: Base64 of the bytes that Apache Pulsar's clients serialize."""

import base64
import binascii
from typing import Any

from google.protobuf.message import DecodeError

from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import MessageId
from pybroker.wire import pulsar_api_pb2 as pb


def message_id_of(text: Any) -> MessageId:
    """Raises InvalidConfiguration unless `text` is a base64 MessageIdData."""
    try:
        data = pb.MessageIdData.FromString(base64.b64decode(text, validate=True))
        if not (data.HasField("ledgerId") and data.HasField("entryId")):
            raise ValueError("it names no entry")
        found = MessageId.from_wire(data)
        if not found.names_message():
            ends = (MessageId.earliest, MessageId.latest)
            found = ends[ends.index(found)]
        return found
    except (TypeError, ValueError, binascii.Error, DecodeError):
        raise InvalidConfiguration(f"{str(text)[:100]!r} is not a message id") from None


def text_of_message_id(message_id: MessageId) -> str:
    return base64.b64encode(message_id.serialize()).decode()
