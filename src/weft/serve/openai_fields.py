"""What several of OpenAI's routes share: sampling fields, stop strings, usage, finish reasons.

`SamplingBody` has OpenAI's fields and those of vLLM that clients send in `extra_body`. Field by
field, they are honored as both document them; see docs/serve.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field

from weft.core.errors import UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.detokenizer import FinishReason, visible_special_ids
from weft.engine.grammar import Grammar, make_grammar
from weft.engine.logprobs import TokenLogprob
from weft.sampling.params import SamplingParams
from weft.serve.api_errors import ApiError
from weft.serve.bodies import Body, NoEffect, rejected
from weft.serve.generation import Usage
from weft.serve.json_bodies import read_json
from weft.serve.schema_types import LOGIT_BIAS, STOP, TokenIds, sampling_range
from weft.serve.served_model import ServedModel
from weft.serve.text_options import TextOptions

MAX_N = 128
PROMPT_FIELDS = ("messages", "input", "prompt")
"""Where a route has its prompt; /v1/responses also knows `prompt`, and rejects it."""

Stop = str | list[str] | None


class StreamOptions(Body):
    """Options of a streamed response: include_usage sends a last chunk with the token counts."""

    include_usage: bool = False
    include_obfuscation: NoEffect[bool] = None
    continuous_usage_stats: NoEffect[bool] = None


class StructuredOutputs(Body):
    """vLLM's constraints of the text; one of them."""

    json_: Any = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Annotated[Any, rejected("use tools, or a grammar.")] = None
    whitespace_pattern: Annotated[Any, rejected("use a grammar.")] = None
    disable_fallback: NoEffect[bool] = None
    disable_any_whitespace: Annotated[Any, rejected("use a grammar.")] = None
    disable_additional_properties: Annotated[
        Any, rejected("put additionalProperties into the schema.")
    ] = None


class SamplingBody(Body):
    """Fields that choose tokens."""

    temperature: Annotated[float | None, sampling_range("temperature")] = None
    """Sampling temperature; 0: greedy."""
    top_p: Annotated[float | None, sampling_range("top_p")] = None
    """Nucleus sampling; 0: only the most likely token."""
    top_k: Annotated[int | None, sampling_range("top_k", -1)] = None
    """Sample from the k most likely tokens; 0 or -1: all."""
    min_p: Annotated[float | None, sampling_range("min_p")] = None
    """Minimum probability of a token, relative to the most likely one."""
    presence_penalty: Annotated[float | None, sampling_range("presence_penalty")] = None
    """Subtracted from the logits of tokens that occur in the output."""
    frequency_penalty: Annotated[float | None, sampling_range("frequency_penalty")] = None
    """Subtracted from a token's logit once for each occurrence in the output."""
    repetition_penalty: Annotated[float | None, sampling_range("repetition_penalty")] = None
    """Above 1: tokens of the prompt and the output become less likely."""
    logit_bias: Annotated[dict[str, float] | None, LOGIT_BIAS] = None
    """Added to the logits of single tokens: {id: bias}."""
    seed: int | None = None
    """Seed of the random draws; without one a random seed is drawn."""
    stop: Annotated[Stop, STOP] = None
    """Up to 64 stop strings, which are not part of the text."""
    n: Annotated[int | None, Field(ge=1, le=MAX_N)] = None
    """Number of texts."""
    stream: bool | None = None
    """Send the text as it is generated."""
    stream_options: StreamOptions | None = None
    """include_usage: a last chunk with the token counts."""
    ignore_eos: bool | None = None
    """Continue after an end token."""
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    """Tokens before an end token may be chosen."""
    stop_token_ids: TokenIds | None = None
    """Further end tokens."""
    include_stop_str_in_output: bool | None = None
    """Keep the stop string at the end of the text."""
    skip_special_tokens: bool | None = None
    """false: special tokens are part of the text."""
    structured_outputs: StructuredOutputs | None = None
    """json, regex, choice, grammar or json_object: the text matches it."""
    use_beam_search: bool | None = None
    """Beam search instead of sampling; best_of is its width. Fields that choose or stop samples,
    logprobs, grammars and tools cannot be used with it."""
    length_penalty: float | None = None
    """Exponent of the length by which the score of a beam search is divided."""
    cache_salt: str | None = None
    """Requests with different salts share nothing in the prefix cache."""
    user: NoEffect[str] = None
    """Accepted; the API key tells who calls."""
    priority: Annotated[Any, rejected("requests are served in a fair order. Leave it out.")] = None


def sampling_values(body: SamplingBody) -> dict[str, Any]:
    """The fields of SamplingParams that a body has set."""
    names = SamplingParams.model_fields.keys() & SamplingBody.model_fields.keys()
    values = {name: getattr(body, name) for name in names if name not in ("seed", "logit_bias")}
    values = {name: value for name, value in values.items() if value is not None}
    if body.logit_bias:
        values["logit_bias"] = {token_id(key): bias for key, bias in body.logit_bias.items()}
    if values.get("top_k") == -1:  # vLLM's way to say all
        values["top_k"] = 0
    return values


def token_id(key: str) -> int:
    if not key.isdecimal():
        raise ApiError(
            400, f"logit_bias has the key {key[:40]!r}: keys are token ids.", "logit_bias"
        )
    return int(key)


def stops_of(stop: Stop) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())


def structured_grammar(options: StructuredOutputs | None) -> Grammar | None:
    """The grammar of vLLM's structured_outputs."""
    if options is None:
        return None
    wanted = {
        "json": options.json_,
        "regex": options.regex,
        "choice": options.choice,
        "grammar": options.grammar,
        "json_object": options.json_object or None,
    }
    names = [name for name, value in wanted.items() if value is not None]
    if len(names) > 1:
        raise UsageError(
            f"structured_outputs has {' and '.join(names)}: a text has one. Choose one."
        )
    if not names:
        return None
    [name] = names
    value = json_schema(wanted[name]) if name == "json" else wanted[name]
    return make_grammar(GRAMMAR_KINDS.get(name, name), value)


def one_grammar(response_format: Grammar | None, structured: Grammar | None) -> Grammar | None:
    """The grammar of a text; raises an ApiError if two fields have one."""
    if response_format is not None and structured is not None:
        raise ApiError(
            400,
            "structured_outputs is set beside a response format: a text has one format. Leave out "
            "one of them.",
            "structured_outputs",
        )
    return response_format or structured


def json_schema(value: Any) -> Any:
    """A JSON schema, which vLLM also accepts as JSON text."""
    return read_json(value.encode(), "structured_outputs.json") if isinstance(value, str) else value


GRAMMAR_KINDS = {"json": "json_schema", "grammar": "lark"}
"""vLLM's names -> those of make_grammar, where they differ."""

WITHOUT_EFFECT_IN_BEAMS: dict[str, tuple[object, ...]] = {
    "temperature": (0, 1),  # vLLM's clients send 0
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "stop": ("", []),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "structured_outputs": (StructuredOutputs.model_validate({}),),
    "logprobs": (False,),
    "tools": ([],),
    "functions": ([],),
}
"""Fields that a beam search cannot honor, and the values with which they ask for nothing."""


def check_beam_fields(body: SamplingBody, grammar: Grammar | None) -> None:
    """Raise an ApiError for a field that a beam search would ignore."""
    given = {name: getattr(body, name, None) for name in WITHOUT_EFFECT_IN_BEAMS}
    ignored = [
        name
        for name, value in given.items()
        if value is not None and not any(value == one for one in WITHOUT_EFFECT_IN_BEAMS[name])
    ]
    if grammar is not None:
        ignored.append("response_format")
    if type(given["logprobs"]) is int:  # of completions: 0 asks for those of the tokens
        ignored.append("logprobs")
    if ignored:
        raise ApiError(
            400,
            f"{ignored[0]} cannot be used with use_beam_search: a beam search compares whole texts "
            f"by their log-probabilities. Leave out {ignored[0]} or use_beam_search.",
            ignored[0],
        )


def text_options(
    body: SamplingBody,
    served: ServedModel,
    max_tokens: int | None,
    best_of: int | None = None,
    logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> TextOptions:
    """The options of a body's texts."""
    values, n = sampling_values(body), body.n or 1
    if logprobs is not None:
        values["logprobs"] = logprobs
    beam = None
    if body.use_beam_search:
        check_beam_fields(body, grammar)
        penalty = 1.0 if body.length_penalty is None else body.length_penalty
        beam = BeamConfig(best_of or n, penalty, n)
    return TextOptions(
        max_tokens=max_tokens,
        n=1 if beam else n,
        sampling=values,
        seed=None if body.seed is None else body.seed % 2**63,
        stop=stops_of(body.stop),
        grammar=one_grammar(grammar, structured_grammar(body.structured_outputs)),
        beam=beam,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=body.stop_token_ids or (),
        min_tokens=body.min_tokens or 0,
        visible_ids=(
            visible_special_ids(served.tokenizer)
            if body.skip_special_tokens is False
            else frozenset()
        ),
        include_stop=bool(body.include_stop_str_in_output),
        cache_salt=body.cache_salt,
        is_streamed=bool(body.stream),
        prompt_field=next(name for name in PROMPT_FIELDS if name in type(body).model_fields),
    )


def usage_json(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def finish_name(finish: FinishReason | None) -> str | None:
    """OpenAI's name: an end token or a stop string is `stop`."""
    if finish is None:
        return None
    return "length" if finish.reason == "length" else "stop"


def token_text(served: ServedModel, ids: Sequence[int]) -> list[bytes]:
    """The bytes of each token; special tokens by their names."""
    size = served.tokenizer.target.vocab_size
    known = served.tokenizer.target.token_bytes([one for one in ids if one < size])
    contents = iter(known)
    return [next(contents) if one < size else b"" for one in ids]


def logprobs_json(served: ServedModel, entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """OpenAI's log-probabilities: token, logprob, bytes and top_logprobs for each."""
    ids = [index for entry in entries for index in (entry.id, *(one for one, _ in entry.top))]
    contents = dict(zip(ids, token_text(served, ids), strict=True))

    def entry_json(index: int, logprob: float) -> dict[str, Any]:
        content = contents[index]
        text = content.decode("utf-8", "backslashreplace")
        return {"token": text, "logprob": logprob, "bytes": list(content)}

    return [
        {**entry_json(one.id, one.logprob), "top_logprobs": [entry_json(*top) for top in one.top]}
        for one in entries
    ]


class ChunkWriter:
    """Writes the chunks of a stream; their constant parts are serialized once."""

    def __init__(self, head: Mapping[str, Any], with_usage: bool) -> None:
        self.start = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self.end = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"

    def chunk(self, choice: Mapping[str, Any]) -> bytes:
        """A chunk with one choice."""
        return self.start + orjson.dumps(choice) + self.end

    def last(self, usage: Mapping[str, Any]) -> bytes:
        """The chunk with the token counts."""
        return self.start + b'],"usage":' + orjson.dumps(usage) + b"}\n\n"
