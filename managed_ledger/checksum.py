"""CRC-32C, computed by the package `crc32c` in C.

When that package is imported it looks up its own version, for which Python loads a parser of
e-mails and more: 12 ms of each start. Its extension module alone has all that is needed. A version
of the package without that module is imported whole.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

_EXTENSION = "crc32c._crc32c"


def _loaded() -> ModuleType:
    package = find_spec("crc32c")  # finds it without importing it
    where = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec(_EXTENSION, where)
    if spec is None or spec.loader is None:
        import crc32c as whole

        return whole
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:
    crc32c = _loaded().crc32c
