"""Makes Spark's Python processes import the installed PySpark instead of pyspark.zip.

Spark puts that zip first on the path of each process that it starts. The zip's modules are not
compiled, so each process compiles them again, for 0.4 s of CPU. If the zip lies within an installed
PySpark, the installation has the same modules, compiled.

Python runs any module named sitecustomize on its path at startup. `register` puts this folder on
the path of Spark's Python processes only. A sitecustomize that this one hides is run, too.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

_ZIP = os.path.join(os.sep, "python", "lib", "pyspark.zip")


def without_zips(path: Sequence[str]) -> list[str]:
    """The path without each pyspark.zip of a PySpark that is itself on the path."""
    folders = {os.path.realpath(entry) for entry in path}
    return [entry for entry in path if not _is_installed(entry, folders)]


def _is_installed(entry: str, folders: set[str]) -> bool:
    """Whether it is …/pyspark/python/lib/pyspark.zip of an importable pyspark package."""
    package = os.path.realpath(entry).removesuffix(_ZIP)
    folder, name = os.path.split(package)
    is_zip = entry.endswith(_ZIP) and name == "pyspark" and folder in folders
    return is_zip and os.path.isfile(os.path.join(package, "__init__.py"))


if __name__ == "sitecustomize":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = without_zips([entry for entry in sys.path if os.path.abspath(entry) != here])
    this = sys.modules.pop(__name__)
    try:
        import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = this
