"""What clients of some versions do after an error, as far as it decides which error they get."""

from typing import Final

from pybroker.base.errors import ChecksumError, NotAllowed, PulsarError

# How the version of a client begins that reconnects when the broker closes a waiting producer.
# After an error it reconnects only in the first seconds; other clients accept only an error.
COMES_BACK: Final = "Pulsar-Java"
# How the version of a client begins (C++, and Python and Node.js, which use it) that, after any
# error for a message except ChecksumError, reconnects and sends the message again, without end.
_FAILS_ONLY_DAMAGED: Final = "Pulsar-CPP"


def as_final(client_version: str, error: PulsarError) -> PulsarError:
    """The error for a message that must not be stored."""
    if isinstance(error, NotAllowed) and client_version.startswith(_FAILS_ONLY_DAMAGED):
        return ChecksumError(error.on_the_wire)
    return error
