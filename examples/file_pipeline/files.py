"""Where files lie, and what their bytes really are. No queue in here."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from pypdf import PdfReader
from pypdf.errors import PyPdfError

MAX_FILE_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 50_000_000
"""A small file can unfold into a huge picture; beyond this it is rejected before it is unfolded."""
THUMBNAIL = (256, 256)
MAX_TEXT_CHARS = 1_000_000

KINDS = {
    ".png": "image", ".jpg": "image", ".jpeg": "image", ".gif": "image", ".webp": "image",
    ".pdf": "pdf",
    ".txt": "text", ".md": "text", ".csv": "text",
}  # fmt: skip
OTHER = "other"


class Rejected(Exception):
    """The content is not what its name says, or is not taken. An answer about the file, not a failure of ours."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Files under the hash of their name and content; writing one twice is writing it once."""

    folder: Path

    def put(self, name: str, content: bytes) -> str:
        """Keep the bytes; returns the file's id."""
        file_id = hashlib.sha256(name.encode() + b"\0" + content).hexdigest()[:32]
        self._write(self.path(file_id), content)
        return file_id

    def path(self, file_id: str, ending: str = "") -> Path:
        """Where a file, or what was made of it, lies."""
        return self.folder / file_id[:2] / f"{file_id}{ending}"

    def read(self, file_id: str) -> bytes:
        """Raises FileNotFoundError while it is not there (yet, or the volume is not mounted)."""
        return self.path(file_id).read_bytes()

    def put_beside(self, file_id: str, ending: str, content: bytes) -> None:
        """Keep what was made of a file."""
        self._write(self.path(file_id, ending), content)

    def _write(self, path: Path, content: bytes) -> None:
        """All of it or nothing, whatever is killed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(part).replace(path)


def kind_of(name: str) -> str:
    """By the file's name: image, pdf, text, or other."""
    return KINDS.get(Path(name).suffix.lower(), OTHER)


def check(kind: str, content: bytes) -> dict[str, int]:
    """What the content says of itself. Raises `Rejected` where it is not of this kind, or too large."""
    if not content:
        raise Rejected("the file is empty")
    match kind:
        case "image":
            return _check_image(content)
        case "pdf":
            return {"pages": len(_pdf(content).pages)}
        case "text":
            return {"lines": _text(content).count("\n") + 1}
        case _:
            raise Rejected("only images, PDF and text are taken")


def thumbnail_of(content: bytes) -> bytes:
    """A PNG of at most 256 by 256."""
    with Image.open(io.BytesIO(content)) as image:
        small = image.convert("RGBA" if "A" in image.getbands() else "RGB")
        small.thumbnail(THUMBNAIL)
        out = io.BytesIO()
        small.save(out, format="PNG")
    return out.getvalue()


def text_of(kind: str, content: bytes) -> str:
    """The text in a PDF or a text file."""
    if kind == "text":
        return _text(content)[:MAX_TEXT_CHARS]
    return "\n".join(page.extract_text() for page in _pdf(content).pages)[:MAX_TEXT_CHARS]


def _check_image(content: bytes) -> dict[str, int]:
    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Rejected(f"{width} by {height} pixels are too many")
            image.verify()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Rejected("the bytes are no image that can be read") from error
    return {"width": width, "height": height}


def _pdf(content: bytes) -> PdfReader:
    try:
        reader = PdfReader(io.BytesIO(content))
        _ = len(reader.pages)
    except (PyPdfError, ValueError, KeyError, TypeError) as error:
        raise Rejected(f"the bytes are no PDF that can be read: {error}") from error
    return reader


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"no UTF-8 text: {error.reason} at byte {error.start}") from error
