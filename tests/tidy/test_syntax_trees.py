import gc

import pytest
from syntax import syntax_tree


class ParsedAtItsEnd:
    """Cyclic garbage whose finalizer parses code, like a logged traceback does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        syntax_tree("1 + (2 * 3)")


@pytest.fixture
def eager_collector():
    thresholds = gc.get_threshold()
    gc.set_threshold(10, 1, 1)
    yield
    gc.set_threshold(*thresholds)


def test_garbage_that_parses_does_not_disturb_the_parser(eager_collector):
    ParsedAtItsEnd()
    assert len(syntax_tree("x = [1, (2, 3), 4 + 5 * 6]\n" * 200).body) == 200
