"""What `register` adds to the writers of PySpark, for this format.

- Spark looks up a Python sink in the thread's own session. A Python thread has none before
  something like createDataFrame sets it, so the sink would not be found. Starting a query therefore
  does what createDataFrame does.
- A save without a mode appends, as with Kafka's sink: Spark's default mode asks whether a topic
  exists, and Spark would recommend `overwrite`, which no topic has.
- Spark does not pass a table's options to its queries, so nobody could read a table of this format:
  writing one is refused before Spark has created it.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pybroker.base.errors import NotAllowed

NO_TABLES: Final = (
    "Spark does not pass a table's options to its queries, so a table of the format pulsar cannot "
    "be read or written"
)
_FORMAT: Final = "pulsar"
_GIVEN: Final = "_pybroker_given"
_APPEND: Final = "append"

Method = Callable[..., Any]


def extend(is_remote: bool) -> None:
    """Once for a process, for its classic or its remote writers."""
    batch: type
    tables: type
    stream: type
    if is_remote:
        from pyspark.sql.connect import readwriter
        from pyspark.sql.connect.streaming import readwriter as streaming

        batch, tables = readwriter.DataFrameWriter, readwriter.DataFrameWriterV2
        stream = streaming.DataStreamWriter
    else:
        batch, tables, stream = DataFrameWriter, DataFrameWriterV2, DataStreamWriter
        _replace(stream, "start", _in_its_session)
        _replace(batch, "save", _in_its_session)
    for writer, name in ((batch, "format"), (batch, "mode"), (stream, "format"), (tables, "using")):
        _replace(writer, name, _noting)
    _replace(batch, "save", _appending)
    _replace(batch, "saveAsTable", _refusing("save"))
    _replace(stream, "toTable", _refusing("start"))
    for name in ("create", "replace", "createOrReplace"):
        _replace(tables, name, _refusing("df.write, format and save"))


def _replace(writer: type, name: str, extended: Callable[[Method], Method]) -> None:
    plain = getattr(writer, name)
    layers = getattr(plain, "_pybroker_layers", ())
    if extended.__qualname__ not in layers:
        method = extended(plain)
        method._pybroker_layers = (*layers, extended.__qualname__)  # type: ignore[attr-defined]
        setattr(writer, name, method)


def _in_its_session(plain: Method) -> Method:
    @wraps(plain)
    def begin(writer: Any, *arguments: Any, **options: Any) -> Any:
        session = writer._spark
        of_jvm = SparkSession._get_j_spark_session_class(session._jvm)
        of_jvm.setActiveSession(session._jsparkSession)
        return plain(writer, *arguments, **options)

    return begin


def _noting(plain: Method) -> Method:
    """Spark's own writers do not tell what they were given."""

    @wraps(plain)
    def note(writer: Any, given: Any) -> Any:
        noted = getattr(writer, _GIVEN, {}) | {plain.__name__: given}
        result = plain(writer, given)
        setattr(result, _GIVEN, noted)
        return result

    return note


def _given(writer: Any, plain: Method, arguments: Any, options: Any) -> dict[str, Any]:
    """The format and the mode, as set before or with the call."""
    bound = inspect.signature(plain).bind(writer, *arguments, **options).arguments
    now = {name: bound[name] for name in ("format", "mode") if bound.get(name) is not None}
    noted: dict[str, Any] = getattr(writer, _GIVEN, {})
    found = {"format": noted.get("using")} | noted | now
    return found | {"is_ours": str(found["format"]).lower() == _FORMAT}


def _appending(plain: Method) -> Method:
    @wraps(plain)
    def save(writer: Any, *arguments: Any, **options: Any) -> Any:
        given = _given(writer, plain, arguments, options)
        if given["is_ours"]:
            mode = given.get("mode") or _APPEND
            if str(mode).lower() != _APPEND:
                raise NotAllowed(
                    f'format("pulsar") appends messages to topics, so the mode {mode!r} is not '
                    "possible: leave it out, or use append"
                )
            writer.mode(_APPEND)
        return plain(writer, *arguments, **options)

    return save


def _refusing(remedy: str) -> Callable[[Method], Method]:
    def refusing(plain: Method) -> Method:
        @wraps(plain)
        def refuse(writer: Any, *arguments: Any, **options: Any) -> Any:
            if _given(writer, plain, arguments, options)["is_ours"]:
                raise NotAllowed(f"{NO_TABLES}: use {remedy} instead of {plain.__name__}")
            return plain(writer, *arguments, **options)

        return refuse

    return refusing
