"""A thread that looks at something again and again for the length of a block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self


class Watch(ABC):
    """`look` is called every `every_s` seconds, from the block's beginning to its end."""

    every_s: ClassVar[float]

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__.lower(), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join()

    @abstractmethod
    def look(self) -> None:
        """Look once, in the thread."""

    def _run(self) -> None:
        while not self._ending.wait(self.every_s):
            self.look()
