"""Backups of a broker's file: whether one is sound, and putting it in the place of what is there. No app need be open.

Making one is `Service.backup`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redrive.errors import ConfigurationError, NotFoundError
from redrive.runtime.adapters import check_file, masked, restore_file
from redrive.runtime.backend import FileReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A backup in the place of the broker's file, or (dry run) what it would be. `kept`: the file that was there."""

    source: Path
    broker: str
    report: FileReport
    kept: Path | None
    is_dry_run: bool


def verify_file(path: Path) -> FileReport:
    """Whether a storage file or a backup is sound. Raises `NotFoundError`, `StorageCorruptError`,
    `SchemaTooNewError`.
    """
    if not path.is_file():
        raise NotFoundError(f'There is no file "{path}".')
    return check_file(path)


def restore_backup(url: str, source: Path, *, replace: bool, dry_run: bool) -> Restored:
    """Put a backup in the place of the broker's file, which nobody may have open. Raises as `restore_file`."""
    report = verify_file(source)
    if report.problems:
        raise ConfigurationError(f'"{source}" is not sound: {report.problems[0]}. Nothing was changed.')
    kept = None if dry_run else restore_file(url, source, replace=replace)
    return Restored(source=source, broker=masked(url), report=report, kept=kept, is_dry_run=dry_run)
