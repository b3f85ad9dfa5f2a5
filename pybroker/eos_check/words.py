"""Makes text from outside safe for a terminal and a page."""


def printable(text: str) -> str:
    """With control characters and unpaired surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
