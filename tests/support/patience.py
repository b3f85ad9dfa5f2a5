"""How tests ask over HTTP: with more patience than a busy machine needs, and trusting nobody.

httpx would read every authority of the machine for each client (15 ms), also for plain HTTP.
"""

import importlib.util
import ssl
from typing import Any, Final

_ANSWER_WITHIN_S: Final = 60.0  # httpx's own limit is five seconds, which a busy machine reaches


def be_patient_with_answers() -> None:
    """For all of httpx in this process, where it is installed; what is given holds.

    A test over HTTPS names the authority that it trusts.
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
