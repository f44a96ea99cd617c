"""Controls of queues in memory."""

from __future__ import annotations

from redrive.core.policy.control import Control, Controls


class MemoryControlStore:
    """A `ControlStore` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, Control] = {}

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; the controls stay."""

    async def put(self, control: Control) -> None:
        """See `ControlStore.put`."""
        if control.is_empty:
            self._kept.pop(control.queue, None)
        else:
            self._kept[control.queue] = control

    async def list(self) -> Controls:
        """See `ControlStore.list`."""
        return [control for _, control in sorted(self._kept.items())]
