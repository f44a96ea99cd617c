"""Every way in which a topology loses messages, found without traffic; or the proof that there is none.

`verify` works on a `Topology`, whoever made it: an app, a `definitions.json`, or a live broker. It computes what is in
force on each queue (`effective`), routes symbolically (`routing`, `patterns`), follows messages under every fate
(`fates`, `ways`) and lets the `rules` say what goes wrong, in the words of the `catalogue`.
"""

from redrive.core.topology.verify.catalogue import CATALOGUE
from redrive.core.topology.verify.checking import verify
from redrive.core.topology.verify.client import REDRIVE, UNKNOWN, Client, Publish
from redrive.core.topology.verify.findings import Finding, Severity, Suppression, read_suppressions
from redrive.core.topology.verify.render import render
from redrive.core.topology.verify.report import Report

__all__ = [
    "CATALOGUE",
    "REDRIVE",
    "UNKNOWN",
    "Client",
    "Finding",
    "Publish",
    "Report",
    "Severity",
    "Suppression",
    "read_suppressions",
    "render",
    "verify",
]
