"""The errors of a visitor's client, as answers over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.client.errors import InvalidConfiguration, MessageTooBig, UnsupportedCompression


class BadParameters(PulsarError):
    http_status = 400


@contextmanager
def answerable() -> Iterator[None]:
    """Raises BadParameters for what the visitor has asked for, and ServiceNotReady in place of the
    client's other errors: they mean that no answer came. The broker's refusals stay as they are.
    """
    try:
        yield
    except (InvalidConfiguration, UnsupportedCompression, MessageTooBig) as error:
        raise BadParameters(str(error)) from error
    except PulsarError as error:
        if type(error).http_status == PulsarError.http_status:
            raise ServiceNotReady(str(error)) from error
        raise
