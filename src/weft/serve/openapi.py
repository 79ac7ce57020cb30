"""/openapi.json: FastAPI's description of the routes, with what depends on the models of a server.

    weft-model, weft-decoder, weft-chat-model, weft-translator
                                                an enumeration of the names that a request may use
    weft-token-id                               ids that all models have
    weft-source-language, weft-target-language  languages of the translation models
    weft-dimension                              up to the width of the narrowest model

A model that is not loaded yet may be of any kind, so its name is in all enumerations. For a caller
without a key, where keys are configured, there are no names: any text is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fastapi import FastAPI

from weft.serve.context import Service
from weft.serve.schema_types import (
    CHAT_MODEL,
    DECODER,
    DIMENSION,
    MODEL,
    NULL,
    SOURCE,
    TARGET,
    TOKEN_ID,
    TRANSLATOR,
    JsonSchema,
)
from weft.serve.served_model import ServedModel

KINDS: dict[str, Callable[[ServedModel], bool]] = {
    MODEL: lambda served: True,
    DECODER: lambda served: served.kind == "decoder",
    CHAT_MODEL: lambda served: served.can_chat,
    TRANSLATOR: lambda served: served.kind == "encoder-decoder",
}


class ServedSchema:
    """The description of one server."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.service, self.describe = service, app.openapi
        """FastAPI keeps its own description, which is the same for all servers."""

    def __call__(self, with_names: bool = True) -> dict[str, Any]:
        """The description as it is now: models may have been loaded."""
        description = SchemaFiller(self.service, with_names).filled(deepcopy(self.describe()))
        assert isinstance(description, dict), "a description is an object"
        return description


class SchemaFiller:
    """Replaces the formats of this package. `with_names`: whether model names are listed."""

    def __init__(self, service: Service, with_names: bool) -> None:
        self.service, self.with_names = service, with_names

    def filled(self, value: Any) -> Any:
        """A schema, or a part of one, without formats of this package."""
        if isinstance(value, list):
            return [self.filled(one) for one in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("format")
        if isinstance(kind, str) and kind.startswith("weft-"):
            return self.resolved(value, kind)
        self.need_model(value)
        return {key: self.filled(one) for key, one in value.items()}

    def resolved(self, schema: JsonSchema, kind: str) -> JsonSchema:
        """The schema of a format."""
        rest = {key: one for key, one in schema.items() if key != "format"}
        loaded = list(self.service.models.models.values())
        if kind in KINDS:
            return {**rest, "enum": self.names(KINDS[kind])} if self.with_names else rest
        if kind in (SOURCE, TARGET):
            pairs = [served.languages for served in loaded if served.languages is not None]
            place = (SOURCE, TARGET).index(kind)
            codes = list(dict.fromkeys(pair[place] for pair in pairs))
            return {**rest, "enum": codes} if codes else rest
        if kind == DIMENSION:
            widths = [served.loaded.model.config.width for served in loaded]
            return {**rest, "maximum": min(widths)} if widths else rest
        assert kind == TOKEN_ID, f"{kind} is not a format"
        size = min((served.tokenizer.vocab_size for served in loaded), default=10)
        if rest["type"] == "string":  # the keys of logit_bias: numbers with fewer digits
            digits = len(str(size)) - 2
            return {**rest, "pattern": f"^(0|[1-9][0-9]{{0,{max(0, digits - 1)}}})$"}
        return {**rest, "maximum": size - 1}

    def names(self, accepts: Callable[[ServedModel], bool]) -> list[str]:
        """The names of models that are accepted, or not loaded yet."""
        registry = self.service.models
        served = {name: registry.models.get(registry.resolve(name)) for name in registry.names}
        return [name for name, one in served.items() if one is None or accepts(one)]

    def need_model(self, schema: JsonSchema) -> None:
        """A body that may leave out its model may not if there are several, unless it may name
        languages instead."""
        model = schema.get("properties", {})
        model = model.get("model") if isinstance(model, dict) else None
        options = model.get("anyOf") if isinstance(model, dict) else None
        kind = str(options[0].get("format", "")) if options else ""
        is_model = kind.startswith("weft-") and kind != TRANSLATOR
        if is_model and isinstance(model, dict) and len(self.service.models.paths) > 1:
            model["anyOf"] = [one for one in options or () if one != NULL]
            schema["required"] = sorted({*schema.get("required", ()), "model"})
