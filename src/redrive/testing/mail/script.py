"""Script: what a test's mail server answers at which stage, in the order it was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DROP: Final = "DROP"
"""In place of a reply: the connection is cut."""

Answer = Callable[[str, str], str | None]
"""(stage, argument) to a reply, `DROP`, or None for what a working server says."""


@dataclass(slots=True, kw_only=True)
class _Line:
    stage: str
    reply: str
    only: str
    times: int | None


class Script:
    """Told answers. The first that fits and is not used up holds; else `answer`, where given; else all is well.

    `asked` counts how often each stage was reached.
    """

    def __init__(self, answer: Answer | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self._lines: list[_Line] = []
        self._answer = answer

    def refuse(self, stage: str, reply: str, *, only: str = "", times: int | None = None) -> None:
        """Answer this at that stage, to arguments that hold `only`; None times is for ever."""
        self._lines.append(_Line(stage=stage, reply=reply, only=only, times=times))

    def drop(self, stage: str, *, only: str = "", times: int | None = None) -> None:
        """Cut the connection at that stage."""
        self.refuse(stage, DROP, only=only, times=times)

    def answer_by(self, answer: Answer) -> None:
        """Answer what this says, where nothing else was told."""
        self._answer = answer

    def mend(self) -> None:
        """Forget all that was told."""
        self._lines.clear()

    def reply(self, stage: str, argument: str = "") -> str | None:
        """What to answer now; None where all is well."""
        self.asked[stage] += 1
        for line in self._lines:
            if line.stage == stage and line.only in argument and line.times != 0:
                line.times = None if line.times is None else line.times - 1
                return line.reply
        return None if self._answer is None else self._answer(stage, argument)
