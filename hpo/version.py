"""Versions: of the distribution, and of the protocol between workers and the server."""

__version__ = "0.1.0"

# Raised when a worker of an older release could no longer take part correctly.
PROTOCOL_VERSION = 1
