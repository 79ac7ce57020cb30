"""LibreTranslate's API: POST /translate and GET /languages.

    {"q": "A man.", "source": "en", "target": "de"}     -> {"translatedText": "..."}

The model is the one that was trained for the two languages. `q` may be a list; each line of a text
is translated by itself, as `weft translate` does, and empty lines stay empty. `alternatives` are
the next best results of a beam search, and `beam` is its width (Weft's own field): 1, or as many as
results are asked for. The body is JSON or a form, and the API key may be its field `api_key`.

Differs from LibreTranslate: no language detection (`auto` needs a single source language), no HTML,
and a line that is too long is an error instead of being split.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from email.parser import BytesParser
from email.policy import HTTP
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.responses import Response

from weft.checkpoint.description import describe
from weft.core.errors import WeftError
from weft.engine.beam_search import BeamConfig
from weft.engine.request import GenerationRequest
from weft.serve.api_errors import ApiError
from weft.serve.api_keys import key_of
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import LooseBody
from weft.serve.context import CallOf, HttpCall
from weft.serve.generation import Choice, Generation, Submitted
from weft.serve.json_bodies import read_json
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import SourceLanguage, TargetLanguage, TranslatorName, one_of
from weft.serve.served_model import ServedModel
from weft.serve.streaming import until_gone
from weft.text.languages import language_name

router = APIRouter(tags=["LibreTranslate"], route_class=ApiRoute)

AUTO = "auto"
MAX_LINES = 2048
MAX_BEAM = 256


class TranslateBody(LooseBody):
    """The body of /translate."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["target"]}, {"required": ["model"]}]}
    )

    q: str | list[str]
    """A text, or several."""
    source: SourceLanguage = AUTO
    """Code of its language; auto: the only one that is served."""
    target: TargetLanguage = ""
    """Code of the language to translate into; may be left out if there is `model`."""
    model: TranslatorName | None = None
    """Name of a served translation model, whose languages need not be known then."""
    format: Annotated[str, WithJsonSchema(one_of("text"))] = "text"
    """text; html is not supported."""
    alternatives: Annotated[int, Field(ge=0, lt=MAX_BEAM)] = 0
    """Further translations of each text."""
    beam: Annotated[int | None, Field(ge=1, le=MAX_BEAM)] = None
    """Beam width; default: 1, or with alternatives as many as there are results."""
    api_key: str | None = None
    """The API key, unless it is in a header."""


class DetectedLanguage(BaseModel):
    """The source language, if it was `auto`."""

    language: str
    confidence: float


class TranslateResult(BaseModel):
    """The response of /translate; lists if `q` is a list."""

    translated_text: str | list[str] = Field(alias="translatedText")
    detected_language: DetectedLanguage | list[DetectedLanguage] | None = Field(
        None, alias="detectedLanguage"
    )
    alternatives: list[str] | list[list[str]] | None = None


class ServedLanguage(BaseModel):
    """A language and those that it is translated into."""

    code: str
    name: str
    targets: list[str]


BODY_SCHEMA = TranslateBody.model_json_schema()
REQUEST_BODY = {
    "required": True,
    "content": {
        kind: {"schema": BODY_SCHEMA}
        for kind in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    },
}


@router.post(
    "/translate",
    response_model=TranslateResult,
    openapi_extra={"requestBody": REQUEST_BODY},
)
async def translate(call: CallOf) -> Response:
    """Translate a text, or several."""
    fields = await read_fields(call)
    authenticate(call, fields.get("api_key"))
    body = TranslateBody.model_validate(fields)
    check_body(body)
    served, source = await find_model(call, body)
    call.record.model = served.name
    texts = [body.q] if isinstance(body.q, str) else body.q
    best = await translate_texts(call, served, texts, body)
    content = result_of(body, best, source)
    return JsonResponse(content, headers=call.response_headers)


@router.get("/languages", response_model=list[ServedLanguage])
async def languages(call: CallOf) -> Response:
    """The languages that are served, and what they are translated into."""
    fields = dict(call.request.query_params) or await read_fields(call)
    authenticate(call, fields.get("api_key"))
    targets: dict[str, list[str]] = {}
    for source, target in await all_pairs(call):
        targets.setdefault(source, []).append(target)
        targets.setdefault(target, [])
    return JsonResponse(
        [
            {"code": code, "name": language_name(code), "targets": sorted(set(into))}
            for code, into in sorted(targets.items())
        ]
    )


# --- bodies and keys ------------------------------------------------------------------------


async def read_fields(call: HttpCall) -> dict[str, Any]:
    """The fields of a JSON object or a form; empty without a body."""
    body = await call.request.body()
    content_type = call.request.headers.get("content-type", "")
    return await asyncio.to_thread(parse_fields, body, content_type) if body else {}


def parse_fields(body: bytes, content_type: str) -> dict[str, Any]:
    """Parse a body as JSON or as a form. A form field that occurs several times is a list."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/x-www-form-urlencoded":
            values = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
        elif kind == "multipart/form-data":
            values = parse_multipart(body, content_type)
        else:
            fields = read_json(body)
            if not isinstance(fields, dict):
                raise ApiError(400, "the body is not a JSON object. Send q, source and target.")
            return fields
    except ValueError as error:
        raise ApiError(
            400, f"the body cannot be read as JSON or as a form ({str(error)[:100]})."
        ) from None
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def parse_multipart(body: bytes, content_type: str) -> dict[str, list[str]]:
    """The fields of a multipart form."""
    head = b"content-type: " + content_type.encode("latin-1") + b"\r\n\r\n"
    values: dict[str, list[str]] = {}
    for part in BytesParser(policy=HTTP).parsebytes(head + body).iter_parts():
        name, data = (
            part.get_param("name", header="content-disposition"),
            part.get_payload(decode=True),
        )
        assert isinstance(data, bytes | None), f"a field of a form is {type(data)}"
        values.setdefault(str(name), []).append((data or b"").decode())
    return values


def authenticate(call: HttpCall, api_key: Any) -> None:
    """Set the caller from the headers or the field api_key; raises an ApiError 403 without a valid
    key."""
    headers: Mapping[str, str] = call.request.headers
    if key_of(headers) is None and isinstance(api_key, str) and api_key:
        headers = {"x-api-key": api_key}
    try:
        call.caller = call.service.keys.caller(headers)
    except ApiError as error:
        hint = "" if key_of(headers) else " In a body it is the field api_key."
        raise ApiError(403, error.message + hint) from None
    call.record.key = call.caller.name


def check_body(body: TranslateBody) -> None:
    """Raise an ApiError for values that cannot be served."""
    if not body.target and body.model is None:
        raise ApiError(
            400,
            "target is missing: it must be the code of a language, such as en. Or name a model.",
            "target",
        )
    if body.format != "text":
        raise ApiError(
            400,
            f"format is '{body.format[:40]}': this server translates plain text. Use format text, "
            "and send the texts without markup.",
        )
    num_best = 1 + body.alternatives
    if body.beam is not None and body.beam < num_best:
        raise ApiError(
            400,
            f"beam is {body.beam} and alternatives {body.alternatives}: a beam search of this "
            f"width has at most {body.beam} results. Use a beam of {num_best} or more.",
        )


# --- models ---------------------------------------------------------------------------------


def translators(call: HttpCall) -> list[ServedModel]:
    """The translation models that are loaded."""
    models = call.service.models.models.values()
    return [served for served in list(models) if served.kind == "encoder-decoder"]


async def find_model(call: HttpCall, body: TranslateBody) -> tuple[ServedModel, str | None]:
    """Find the model for the languages of a request; returns it with the source language, if that
    is known."""
    if body.model is not None:
        return named_model(call, body, body.model)
    if not any(matches(served, body) for served in translators(call)):
        await load_translators(call)
    found = [served for served in translators(call) if matches(served, body)]
    sources = list(dict.fromkeys(served.languages[0] for served in found if served.languages))
    if len(sources) == 1:
        return found[0], sources[0]
    if sources:
        raise ApiError(
            400,
            f"source is auto, but texts in {' and '.join(sources)} are translated into "
            f"{body.target[:40]}: languages are not detected. Name the source.",
        )
    raise no_model(call, body)


def named_model(call: HttpCall, body: TranslateBody, name: str) -> tuple[ServedModel, str | None]:
    """The model of a name, with the source language. Raises an ApiError for languages other than
    the model's."""
    served = call.service.models.get(name)
    served.check_kind("encoder-decoder")
    if served.languages is None:
        return served, None
    source, target = served.languages
    is_other = body.target != "" and body.target.lower() != target.lower()
    if is_other or body.source.lower() not in (source.lower(), AUTO):
        raise ApiError(
            400,
            f"model '{served.name}' translates {source} -> {target}, not {body.source[:40]} -> "
            f"{(body.target or target)[:40]}. Leave the languages out, or the model.",
        )
    return served, source


def matches(served: ServedModel, body: TranslateBody) -> bool:
    """Whether the languages of a model are those of the request."""
    if served.languages is None:
        return False
    source, target = (code.lower() for code in served.languages)
    return body.target.lower() == target and body.source.lower() in (source, AUTO)


async def load_translators(call: HttpCall) -> None:
    """Raise the NotLoadedError or ApiError of a translation model that is not loaded yet, so that
    the middleware loads it or answers 503."""
    registry = call.service.models
    for name in [one for one in registry.paths if one not in registry.models]:
        if name not in registry.failures and await asyncio.to_thread(
            is_translator, registry.paths[name]
        ):
            registry.get(name)


def is_translator(model: str) -> bool:
    """Whether the files of a model are those of an encoder-decoder."""
    try:
        return describe(model).config.kind == "encoder-decoder"
    except WeftError:
        return False


async def all_pairs(call: HttpCall) -> list[tuple[str, str]]:
    """(source, target) of all translation models with known languages."""
    await load_translators(call)
    return [served.languages for served in translators(call) if served.languages]


def no_model(call: HttpCall, body: TranslateBody) -> ApiError:
    """The error for languages that no model translates."""
    served = translators(call)
    pairs = [" -> ".join(one.languages) for one in served if one.languages]
    unnamed = [one.name for one in served if one.languages is None]
    message = f"no model translates {body.source[:40]} -> {body.target[:40]}."
    if pairs:
        message += f" Served are {', '.join(pairs)}."
    if unnamed:
        message += (
            f" The languages of {', '.join(unnamed)} are not known: start the server with "
            f"--languages {unnamed[0]}=en:de, for example."
        )
    if not served:
        message += " Start the server with a translation model."
    return ApiError(400, message)


# --- translation ----------------------------------------------------------------------------


async def translate_texts(
    call: HttpCall, served: ServedModel, texts: Sequence[str], body: TranslateBody
) -> list[list[str]]:
    """The best translations of each text, best first."""
    lines = [text.replace("\r\n", "\n").split("\n") for text in texts]
    flat = [line for one in lines for line in one if line.strip()]
    if len(flat) > MAX_LINES:
        raise ApiError(
            400, f"q has {len(flat)} lines: at most {MAX_LINES} are translated at once. Send fewer."
        )
    best = iter(await translate_lines(call, served, flat, body))
    num_best = 1 + body.alternatives
    return [
        joined([next(best) if line.strip() else [""] for line in one], num_best) for one in lines
    ]


def joined(lines: Sequence[Sequence[str]], num_best: int) -> list[str]:
    """Join lines to texts: the n-th text has the n-th best translation of each line, or its last
    one."""
    number = min(num_best, max(len(line) for line in lines))
    return ["\n".join(line[min(rank, len(line) - 1)] for line in lines) for rank in range(number)]


async def translate_lines(
    call: HttpCall, served: ServedModel, lines: Sequence[str], body: TranslateBody
) -> list[list[str]]:
    """The best translations of each line. Lines must not be blank."""
    if not lines:
        return []
    num_best = 1 + body.alternatives
    beam = BeamConfig(body.beam or num_best, num_best=num_best)

    def build() -> Submitted:
        return Submitted(line_requests(call, served, lines, beam))

    generation = await until_gone(call, Generation.start(call, served, build))
    call.service.recent.remember(call.id, call.caller, served, generation)
    choices: list[Choice] = await until_gone(call, generation.collect())
    best: list[list[str]] = [[] for _ in lines]
    for choice in choices:
        best[choice.index // num_best].append(choice.text)
    return best


def line_requests(
    call: HttpCall, served: ServedModel, lines: Sequence[str], beam: BeamConfig
) -> list[GenerationRequest]:
    """The beam search requests of the lines; raises an ApiError for a line that is too long. Runs
    in a thread."""
    sources = served.tokenizer.encode_batch(lines, max_len=sys.maxsize)
    for line, source in zip(lines, sources, strict=True):
        if len(source) > served.max_len:
            raise ApiError(
                400,
                f"the line '{line[:40]}...' has {len(source)} tokens, and the model reads "
                f"{served.max_len}. Split it into shorter ones.",
            )
    caller = call.caller
    return [
        replace(served.builder.beam_search(source, None, beam), salt=caller.salt, key=caller.name)
        for source in sources
    ]


def result_of(
    body: TranslateBody, best: Sequence[Sequence[str]], source: str | None
) -> dict[str, Any]:
    """LibreTranslate's response. `source`: the source language, if it is known."""
    is_single = isinstance(body.q, str)
    content: dict[str, Any] = {"translatedText": unlisted([one[0] for one in best], is_single)}
    if body.source.lower() == AUTO and source is not None:
        detected = [{"language": source, "confidence": 100.0} for _ in best]
        content["detectedLanguage"] = unlisted(detected, is_single)
    if body.alternatives:
        content["alternatives"] = unlisted([list(one[1:]) for one in best], is_single)
    return content


def unlisted(values: Sequence[Any], is_single: bool) -> Any:
    """The values, or the only value if the request had no list."""
    return values[0] if is_single else values
