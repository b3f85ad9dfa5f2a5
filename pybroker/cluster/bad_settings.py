"""The error for keys of broker.conf that cannot take effect."""


class BadSettings(ValueError):
    """The message names the key and says what to write instead."""
