"""Bound TCP sockets, or why a port cannot be had."""

from __future__ import annotations

import socket

from kvik_engine.errors import StartError, StartReason


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket. OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def bind_or_refuse(host: str, port: int) -> socket.socket:
    """A bound socket. StartError (PortInUse) when it is taken."""
    try:
        return bind(host, port)
    except OSError as error:
        remedy = "--port and --metrics-port choose others"
        raise StartError(
            StartReason.PORT_IN_USE, f"{host}:{port} cannot be used: {error.strerror}; {remedy}"
        ) from error
