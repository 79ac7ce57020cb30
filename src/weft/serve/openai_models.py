"""OpenAI's list of models: GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from weft.serve.api_route import ApiRoute
from weft.serve.context import CallOf, Service

router = APIRouter(prefix="/v1/models", tags=["OpenAI"], route_class=ApiRoute)


@router.get("")
async def list_models(call: CallOf) -> dict[str, Any]:
    """The models that requests may name, aliases included."""
    service = call.service
    return {"object": "list", "data": [model_card(service, name) for name in service.models.names]}


@router.get("/{name:path}")
async def get_model(name: str, call: CallOf) -> dict[str, Any]:
    """One model."""
    call.service.models.resolve(name)
    return model_card(call.service, name)


def model_card(service: Service, name: str) -> dict[str, Any]:
    """OpenAI's fields, and those of vLLM that gateways and agents read."""
    resolved = service.models.resolve(name)
    served = service.models.models.get(resolved)
    return {
        "id": name,
        "object": "model",
        "created": int(service.started_at) if served is None else served.created,
        "owned_by": "weft",
        "root": resolved,
        "parent": None,
        "max_model_len": None if served is None else served.max_len,
    }
