"""The pages a reader sees, and the blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line it starts on."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    def blocks(self, *languages: str) -> list[Block]:
        """Blocks in these languages, top to bottom."""
        found = [
            Block(match[1], match[2], self.text.count("\n", 0, match.start()) + 2)
            for match in _FENCE.finditer(self.text)
        ]
        return [block for block in found if block.language in languages]

    def links(self) -> list[str]:
        """Targets of links, without anchors; outside links left out."""
        targets = [target.partition("#")[0] for target in _LINK.findall(_FENCE.sub("", self.text))]
        return [target for target in targets if target and "://" not in target]

    def commands(self) -> list[str]:
        """Shell commands a reader may type: what follows `$` in console blocks, lines joined."""
        joined = [block.text.replace("\\\n", " ") for block in self.blocks("console", "sh")]
        return [line.removeprefix("$ ") for text in joined for line in text.splitlines() if line.startswith("$ ")]


def pages() -> list[Page]:
    """README, CHANGELOG and everything under docs."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(path) for path in found]
