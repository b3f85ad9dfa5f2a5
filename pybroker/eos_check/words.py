"""Makes text from outside safe to show on a terminal and on a page."""


def printable(text: str) -> str:
    """The text with control characters and unpaired surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
