"""HTTP settings for tests: a timeout that suits a busy machine, and no trusted authorities.

Otherwise httpx would load all authorities of the system for each client (15 ms), even for plain
HTTP.
"""

import importlib.util
import ssl
from typing import Any, Final

_ANSWER_WITHIN_S: Final = 60.0  # httpx's own limit is five seconds, which a busy machine reaches


def be_patient_with_answers() -> None:
    """Change httpx's defaults in this process, if it is installed; explicit arguments still count.

    Tests over HTTPS name the authority that they trust.
    """
    if importlib.util.find_spec("httpx") is None:  # in the environments of other versions of Spark
        return
    import httpx

    trusts_nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking: list[Any] = [httpx.Client.__init__, httpx.AsyncClient.__init__, httpx.request]
    asking += [httpx.get, httpx.head, httpx.post, httpx.put, httpx.patch, httpx.delete]
    for ask in asking:
        ask.__kwdefaults__["timeout"] = httpx.Timeout(_ANSWER_WITHIN_S)
        ask.__kwdefaults__["verify"] = trusts_nobody
