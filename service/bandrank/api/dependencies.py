"""What endpoints ask FastAPI for."""

from typing import Annotated

from fastapi import Depends, Request

from bandrank.api.service import Service


async def _service(request: Request) -> Service:  # FastAPI calls one that is not async in another thread
    service: Service = request.app.state.service
    return service


ServiceOfApp = Annotated[Service, Depends(_service)]
