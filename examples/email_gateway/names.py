"""The literal names of the system, each once."""

from __future__ import annotations

from typing import Final

QUEUE: Final = "email:send"
"""The queue and the name of its jobs. In Redis it lies as `email-send`, which BullMQ of Node can read; that mapping is
the broker's, and people see this name everywhere.
"""
DLQ_NAME: Final = "email:send:dlq"

EVENTS_QUEUE: Final = "email:events"
"""Bounces and complaints, as SES tells them. Ours: the system itself takes none in."""
