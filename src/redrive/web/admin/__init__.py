"""The admin API: dead letters, redrive jobs, queues and limits over HTTP."""

from redrive.web.admin.app import AdminApi, admin_app, beside
from redrive.web.admin.auth import Guard, guard_of
from redrive.web.admin.auth.tokens import TokenFile

__all__ = ["AdminApi", "Guard", "TokenFile", "admin_app", "beside", "guard_of"]
