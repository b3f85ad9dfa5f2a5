"""Python sources as syntax trees."""

import ast
import gc


def syntax_tree(text: str) -> ast.Module:
    """What `text` means to Python, without the garbage collector running beside the parser.

    CPython 3.11's parser is not reentrant (gh-106905): it ends with a SystemError when a finalizer
    parses as well, as asyncio's of a future with an unseen exception does to log its traceback.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collecting:
            gc.enable()
