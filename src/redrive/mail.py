"""Mail: what answers of mail servers mean, per recipient too, and rules of your own over them.

Handlers whose client's errors are known by name (smtplib, aiosmtplib, boto3) need nothing of this. It is for those that
look at answers themselves, send to several recipients, or take in the events of Amazon SES.
"""

from redrive.core.policy.catalogue.mail import MailCause, MailRows, MailRule, merged
from redrive.core.policy.catalogue.ses import classify_api_error
from redrive.core.policy.catalogue.ses_events import RecipientVerdict, classify_event
from redrive.core.policy.catalogue.smtp import MailVerdict, classify_reply, outcome_unknown, parse_reply
from redrive.core.policy.failure import Failed, Failure, FailureKind, Scope
from redrive.core.recipients import Recipient, Recipients, RecipientState

__all__ = [
    "Failed",
    "Failure",
    "FailureKind",
    "MailCause",
    "MailRows",
    "MailRule",
    "MailVerdict",
    "Recipient",
    "RecipientState",
    "RecipientVerdict",
    "Recipients",
    "Scope",
    "classify_api_error",
    "classify_event",
    "classify_reply",
    "merged",
    "outcome_unknown",
    "parse_reply",
]
