"""uvicorn, told to end long polls first when it stops: it waits for open requests."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """Serves one app of `api.app.create_app`.

    uvicorn ends the lifespan only after the requests that are open, and a claim may wait for a
    minute; so the claims are woken before. Set `timeout_graceful_shutdown` as for any server.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.service.close()
        await super().shutdown(sockets)
