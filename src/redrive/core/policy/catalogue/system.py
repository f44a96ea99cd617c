"""Operating system errors by errno."""

from __future__ import annotations

import errno
from typing import Final

from redrive.core.policy.catalogue.errors import TIMEOUT
from redrive.core.policy.failure import Entry, transient

_SOURCE: Final = "POSIX.1-2017, errno.h"

BY_ERRNO: Final[dict[int, Entry]] = {
    number: transient(TIMEOUT if name == "ETIMEDOUT" else name, _SOURCE) for number, name in errno.errorcode.items()
}
"""{errno: row}. All transient: a full disk, a missing file or a refused connection may be mended meanwhile."""

BY_ERRNO_NAME: Final[dict[str, Entry]] = {name: BY_ERRNO[number] for number, name in errno.errorcode.items()}
"""{"ECONNREFUSED": row}: some clients carry the name as text in `error.code`, as Node does."""
