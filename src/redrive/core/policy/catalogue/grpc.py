"""gRPC status names."""

from __future__ import annotations

from typing import Final

from redrive.core.policy.catalogue.errors import TIMEOUT
from redrive.core.policy.failure import Entry, permanent, transient

_SOURCE: Final = "gRPC: status codes and their use"
_TRANSIENT: Final = (
    "ABORTED CANCELLED INTERNAL PERMISSION_DENIED RESOURCE_EXHAUSTED UNAUTHENTICATED UNAVAILABLE UNKNOWN"
)
_PERMANENT: Final = "ALREADY_EXISTS DATA_LOSS FAILED_PRECONDITION INVALID_ARGUMENT NOT_FOUND OUT_OF_RANGE UNIMPLEMENTED"

BY_STATUS_NAME: Final[dict[str, Entry]] = {
    "DEADLINE_EXCEEDED": transient(TIMEOUT, _SOURCE),
    **{name: transient(f"GRPC_{name}", _SOURCE) for name in _TRANSIENT.split()},
    **{name: permanent(f"GRPC_{name}", _SOURCE) for name in _PERMANENT.split()},
}
"""{"UNAVAILABLE": row}."""
