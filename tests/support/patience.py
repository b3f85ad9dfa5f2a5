"""How long tests wait for an answer over HTTP: longer than a busy machine takes for one."""

import importlib.util
from typing import Any, Final

_ANSWER_WITHIN_S: Final = 60.0  # httpx's own limit is five seconds, which a busy machine reaches


def be_patient_with_answers() -> None:
    """For all of httpx in this process, where it is installed; a limit that is given holds."""
    if importlib.util.find_spec("httpx") is None:  # in the environments of other versions of Spark
        return
    import httpx

    asking: list[Any] = [httpx.Client.__init__, httpx.AsyncClient.__init__, httpx.request]
    asking += [httpx.get, httpx.head, httpx.post, httpx.put, httpx.patch, httpx.delete]
    for ask in asking:
        ask.__kwdefaults__["timeout"] = httpx.Timeout(_ANSWER_WITHIN_S)
