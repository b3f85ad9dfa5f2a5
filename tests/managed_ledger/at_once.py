"""An executor without threads: submitted work is done when `submit` returns."""

from concurrent.futures import Executor, Future
from typing import Any


class AtOnce(Executor):
    def submit(self, work: Any, /, *arguments: Any, **options: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **options))
        except Exception as error:
            done.set_exception(error)
        return done
