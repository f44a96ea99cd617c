"""Push consumers: messages delivered over HTTP to a service in any language; its status decides.

`push_to` registers one on an app; `redrive push QUEUE URL` is the same from a shell.
"""

from redrive.push.pusher import push_to
from redrive.push.statuses import outcome_of_status, status_handler
from redrive.push.timing import Waiting, process_after_ms

__all__ = ["Waiting", "outcome_of_status", "process_after_ms", "push_to", "status_handler"]
