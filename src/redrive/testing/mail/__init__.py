"""Mail servers for tests: an SMTP server and an endpoint of Amazon SES, on the loopback interface, that answer as told.

    async with SmtpServer() as server:
        server.refuse("rcpt", "550 5.1.1 user unknown", only="b@example.org")
        server.drop("answer", times=1)          # takes the message and is gone before it says so
        …
        assert ["a@example.org"] == list(server.mails[0].recipients)

They speak the real protocols to real clients; nothing leaves the machine.
"""

from redrive.testing.mail.script import DROP, Script
from redrive.testing.mail.ses import SesEndpoint, SesMail
from redrive.testing.mail.smtp import Mail, SmtpServer

__all__ = ["DROP", "Mail", "Script", "SesEndpoint", "SesMail", "SmtpServer"]
