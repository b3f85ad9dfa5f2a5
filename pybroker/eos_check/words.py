"""Text from outside, made fit for a terminal and a page."""


def printable(text: str) -> str:
    """With control characters and half characters as escapes, so that they control nothing."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
