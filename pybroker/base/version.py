"""The version of pybroker."""


def version() -> str:
    # Imported late: it is slow, and a broker can start without it.
    from importlib import metadata

    try:
        return metadata.version("pybroker")
    except metadata.PackageNotFoundError:
        return "0.0.0"  # a checkout that was not installed
