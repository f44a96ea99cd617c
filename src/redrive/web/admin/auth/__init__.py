"""Who is asking: static tokens, JSON Web Tokens, and a limit on how often one may be wrong."""

from redrive.web.admin.auth.guard import Guard, Principal, guard_of

__all__ = ["Guard", "Principal", "guard_of"]
