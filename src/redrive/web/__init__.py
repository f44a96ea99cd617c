"""HTTP around an app: probes and metrics, what the app mounts, and a server that leaves signals to the worker."""

from redrive.web.probes import Probes, compose, probes_app
from redrive.web.server import HttpServer

__all__ = ["HttpServer", "Probes", "compose", "probes_app"]
