"""The server as a process: a port, uvicorn, and an orderly end."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from .limits import ServingLimits

Made = TypeVar("Made")


def in_passing(make: Callable[[], Made]) -> Made:
    """What `make` returns, or raises, in a thread that ends with it: for loading a model that another thread runs.

    OpenMP keeps a team of threads for each thread that has ever computed. With more of them than cores, all teams
    sleep at every barrier, where one alone would spin for a moment; a small model then ranks noticeably slower.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(make).result()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Nobody can connect before `run`.

    Raises:
        ValueError: there is no such address, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "the host name is malformed"
        raise ValueError(f"cannot listen on {host}, port {port} ({reason}); give another --port or --host.") from None
    return bound


def run(app: FastAPI, bound: socket.socket, limits: ServingLimits) -> None:
    """Serves until SIGTERM or SIGINT; then no new requests are taken, and those that were taken are answered."""
    # uvicorn raises the signal once more when all is done; its default would end Python without its own clean-up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    logging.basicConfig(format="%(levelname)s: %(message)s")
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=75,  # longer than load balancers keep a connection that they may use again
        timeout_graceful_shutdown=int(2 * limits.request_seconds) + 1,
    )
    uvicorn.Server(config).run(sockets=[bound])
