"""Ollama's descriptions of models: /api/tags, /api/ps, /api/show and /api/version.

Names are listed with `:latest`, as Ollama does, because clients compare them with the name that
they have completed in this way; requests may leave it out. The digest identifies settings and
origin of a model; Ollama's is that of its files.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import orjson
import torch
from starlette.responses import Response

from weft import __version__
from weft.checkpoint.description import find_format
from weft.checkpoint.pulled_models import resolve
from weft.core.errors import WeftError
from weft.native.packed import PackedMatrix
from weft.nn.memoryless import is_memoryless
from weft.nn.packed_modules import PackedModule
from weft.serve.api_errors import ApiError
from weft.serve.bodies import LooseBody, NoEffect
from weft.serve.context import CallOf, Service
from weft.serve.ollama_fields import ollama_router, timestamp
from weft.serve.ollama_results import (
    OllamaModelList,
    OllamaProcessList,
    OllamaShowResult,
    OllamaVersion,
)
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import ModelName
from weft.serve.served_model import LATEST, ServedModel

router = ollama_router()

OLLAMA_VERSION = "0.12.11"
"""The version of Ollama whose API this is, which clients compare with the one they need."""
FOREVER = 100 * 365 * 86_400.0
"""Seconds until a model is said to be unloaded. It never is."""
LEVELS = {
    "f32": "F32",
    "q8": "Q8_0",
    "q4": "Q4_1",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
"""Kinds of packed matrices and dtypes -> names that GGUF files have for them."""


class OllamaShowBody(LooseBody):
    """The body of /api/show."""

    model: ModelName | None = None
    """Name of a served model."""
    name: str | None = None
    """The older name of `model`."""
    verbose: NoEffect[bool] = None
    """The description has no long fields."""


@router.get("/version", response_model=OllamaVersion)
def ollama_version() -> Response:
    """The version of Ollama's API, and that of Weft."""
    return JsonResponse({"version": OLLAMA_VERSION, "weft": __version__})


@router.get("/tags", response_model=OllamaModelList)
def ollama_tags(call: CallOf) -> Response:
    """The models that requests may name, aliases included."""
    service = call.service
    return JsonResponse({"models": [model_entry(service, name) for name in service.models.names]})


@router.get("/ps", response_model=OllamaProcessList)
def ollama_ps(call: CallOf) -> Response:
    """The models that are loaded."""
    service = call.service
    entries = []
    for served in list(service.models.models.values()):
        entry = model_entry(service, served.name)
        del entry["modified_at"]
        expires = timestamp(time.time() + FOREVER)
        more = {"expires_at": expires, "size_vram": 0, "context_length": served.max_len}
        entries.append({**entry, **more})
    return JsonResponse({"models": entries})


@router.post("/show", response_model=OllamaShowResult)
def ollama_show(body: OllamaShowBody, call: CallOf) -> Response:
    """What is known about one model."""
    name = body.model or body.name
    if not name:
        raise ApiError(400, "model is missing: it must be the name of a served model.", "model")
    served = call.open(body, name)
    parameters = "\n".join(f"{key:<30} {value}" for key, value in served.defaults.items())
    template = served.loaded.checkpoint.chat_template or ""
    content = {
        "modelfile": modelfile(served, template),
        "parameters": parameters,
        "template": template,
        "details": details(call.service, served),
        "model_info": model_info(served),
        "capabilities": capabilities(served),
        "modified_at": timestamp(served.created),
    }
    return JsonResponse(content)


def tagged(name: str) -> str:
    """The name with a tag, which all of Ollama's names have."""
    return name if ":" in name else name + LATEST


def model_entry(service: Service, name: str) -> dict[str, Any]:
    """The entry of a name in a list. A model that is being loaded has no size and details."""
    served = service.models.models.get(service.models.resolve(name))
    if served is None:
        facts = {"size": 0, "digest": "", "details": {}, "modified_at": timestamp()}
        return {"name": tagged(name), "model": tagged(name), **facts}
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": timestamp(served.created),
        "size": num_bytes(served),
        "digest": digest(service, served),
        "details": details(service, served),
    }


def details(service: Service, served: ServedModel) -> dict[str, Any]:
    """Ollama's details of a model."""
    family = architecture(served)
    return {
        "parent_model": "",
        "format": file_format(service.models.paths[served.name]),
        "family": family,
        "families": [family],
        "parameter_size": short_count(num_parameters(served)),
        "quantization_level": quantization_level(served),
    }


def architecture(served: ServedModel) -> str:
    """The family that the model was read from; its kind if Weft has trained it."""
    return served.loaded.checkpoint.family or served.kind


def file_format(model: str) -> str:
    """gguf or safetensors: the format of the model's weights."""
    with suppress(WeftError, OSError):
        if find_format(resolve(model)) == "gguf":
            return "gguf"
    return "safetensors"


def num_parameters(served: ServedModel) -> int:
    return sum(one.numel() for one in served.loaded.model.parameters())


def short_count(number: int) -> str:
    """A number of parameters as Ollama writes it: 134.5M, 7.2B."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def packed_matrices(served: ServedModel) -> list[PackedMatrix]:
    """The packed weights of a model, each once."""
    modules = (one for one in served.loaded.model.modules() if isinstance(one, PackedModule))
    matrices = {id(one): one for module in modules for one in module.matrices.values()}
    return list(matrices.values())


def num_bytes(served: ServedModel) -> int:
    """Memory of the weights."""
    plain = (one for one in served.loaded.model.parameters() if not is_memoryless(one))
    packed = sum(one.num_bytes for one in packed_matrices(served))
    return packed + sum(one.numel() * one.element_size() for one in plain)


def quantization_level(served: ServedModel) -> str:
    """The type in which most weights are stored."""
    counts: Counter[Any] = Counter()
    for matrix in packed_matrices(served):
        counts[matrix.kind] += matrix.outputs * matrix.inputs
    for weight in served.loaded.model.parameters():
        counts[weight.dtype] += 0 if is_memoryless(weight) else weight.numel()
    [(kind, _)] = counts.most_common(1)
    return LEVELS.get(kind, str(kind))


def digest(service: Service, served: ServedModel) -> str:
    """64 hexadecimal digits that identify the settings and the origin of a model."""
    config = served.loaded.model.config.to_dict()
    path = service.models.paths[served.name]
    facts = [path, served.loaded.checkpoint.family, quantization_level(served), config]
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_NON_STR_KEYS)).hexdigest()


def modelfile(served: ServedModel, template: str) -> str:
    """A Modelfile with what the server knows."""
    lines = [f"FROM {served.name}"]
    lines += [f"PARAMETER {name} {value}" for name, value in served.defaults.items()]
    lines += [f'TEMPLATE """{template}"""'] if template else []
    return "\n".join(lines) + "\n"


def model_info(served: ServedModel) -> dict[str, Any]:
    """Settings of a model under the names that GGUF files have for them."""
    config, family = served.loaded.model.config, architecture(served)
    heads = config.attention
    return {
        "general.architecture": family,
        "general.basename": served.name,
        "general.parameter_count": num_parameters(served),
        f"{family}.context_length": served.max_len,
        f"{family}.embedding_length": config.width,
        f"{family}.block_count": config.num_layers,
        f"{family}.attention.head_count": heads.num_heads,
        f"{family}.attention.head_count_kv": heads.num_kv_heads or heads.num_heads,
        f"{family}.vocab_size": config.vocab_size,
    }


def capabilities(served: ServedModel) -> list[str]:
    """What clients choose models by. Every model can embed texts; encoders can do nothing else."""
    if served.kind == "encoder":
        return ["embedding"]
    optional = {"tools": served.can_chat, "thinking": served.reasoning is not None}
    return ["completion", *(name for name, is_there in optional.items() if is_there)]
