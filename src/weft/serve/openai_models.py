"""OpenAI's list of models: GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from weft.serve.api_route import ApiRoute
from weft.serve.context import CallOf, Service
from weft.serve.openai_results import ModelCard, ModelList
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import ModelName

router = APIRouter(prefix="/v1/models", tags=["OpenAI"], route_class=ApiRoute)


@router.get("", response_model=ModelList)
async def list_models(call: CallOf) -> Response:
    """The models that requests may name, aliases included."""
    service = call.service
    cards = [model_card(service, name) for name in service.models.names]
    return JsonResponse({"object": "list", "data": cards})


@router.get("/{name:path}", response_model=ModelCard)
async def get_model(name: ModelName, call: CallOf) -> Response:
    """One model."""
    call.service.models.resolve(name)
    return JsonResponse(model_card(call.service, name))


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
