"""A message broker in pure Python for the official Apache Pulsar clients.

For applications there are `pybroker.client`, `pybroker.client.aio`, `pybroker.spark` and
`pybroker.testing`. `pybroker.__version__` is the installed version.
"""


def __getattr__(name: str) -> str:
    """Looks up the version at first use, because that takes a while."""
    if name != "__version__":
        raise AttributeError(f"module 'pybroker' has no attribute {name!r}")
    from pybroker.base.version import version

    return version()
