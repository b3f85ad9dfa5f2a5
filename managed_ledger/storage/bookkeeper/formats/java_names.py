"""Names in paths as Apache Pulsar escapes them: java.net.URLEncoder, in UTF-8.

Source: org.apache.pulsar.common.util.Codec.
"""

from functools import lru_cache
from urllib.parse import quote_plus, unquote_plus


@lru_cache(4096)
def escape(name: str) -> str:
    return quote_plus(name, safe="*").replace("~", "%7E")


def unescape(text: str) -> str | None:
    """The name; None if `escape` never returns this text."""
    name = unquote_plus(text, errors="replace")
    return name if escape(name) == text else None
