"""Python sources as syntax trees."""

import ast
import gc


def syntax_tree(text: str) -> ast.Module:
    """Parse `text` while the garbage collector is off.

    CPython 3.11's parser is not reentrant (gh-106905): it raises a SystemError when a finalizer
    parses, too. The finalizer of an asyncio future with an unretrieved exception does so to log the
    traceback.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collecting:
            gc.enable()
