"""A real server and engine whose model says what a test tells it to.

    with running(scripted_service('<tool_call>{"name": ...}</tool_call>')) as server:
        server.post("/v1/chat/completions", {"model": "scripted", ...})

The tokenizer is byte-level, so a text arrives in as many parts as it has bytes; special tokens in a
script are one token each. The logits of the script's next token are raised so far that every
sampling parameter chooses it; grammars and banned tokens still apply. After the script comes the
end token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tests.engine.tiny import SIZES
from tests.serve.server import make_service
from weft.checkpoint.weft_folder import Checkpoint
from weft.engine.detokenizer import special_ids
from weft.engine.engine import Engine
from weft.engine.logits import NextTokenLogits
from weft.engine.sampling_step import StepChooser
from weft.engine.scheduling.plan import Plan
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.serve.context import Service
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

NAME = "scripted"
BOOST = 1000.0

Script = str | Callable[[str], str]
"""What every request generates, or a function of the prompt's text, special tokens included."""

MESSAGE = "<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for message in messages %}" + MESSAGE + "<|im_end|>\n{% endfor %}" + ANSWER

PLAIN_TEMPLATE = CHATML
"""Has no tools."""

HERMES_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}</tools><|im_end|>\n{% endif %}{% for message in messages %}"
    + MESSAGE
    + "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}" + ANSWER
)
"""Hermes and Qwen: calls between tags."""

THINK_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call></tool_call><|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content or '' }}<|im_end|>\n{% endfor %}" + ANSWER
)
"""Reasoning before the answer, and calls as in HERMES_TEMPLATE."""

MISTRAL_TEMPLATE = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if message.tool_calls %}[TOOL_CALLS]{{ message.tool_calls | tojson }}{% endif %}"
    "{{ message.content or '' }}{{ eos_token }}{% elif message.role == 'tool' %}"
    "[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]{% else %}"
    "[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}"
)

LLAMA3_TEMPLATE = (
    "{% if tools %}<|start_header_id|>system<|end_header_id|>\n{{ tools | tojson }}"
    "{# calls may follow <|python_tag|> #}<|eot_id|>{% endif %}{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n"
    "{% endif %}"
)


def scripted_service(
    script: Script,
    template: str | None = HERMES_TEMPLATE,
    special: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
    max_len: int = 4096,
    keys: Mapping[str, str] | None = None,
    **config: Any,
) -> Service:
    """A service with one model, `scripted`. `special`: special tokens of its tokenizer besides
    begin and end; `config`: fields of ServeConfig."""
    service = make_service({NAME: scripted_checkpoint(template, special, max_len)}, keys, **config)
    loaded = service.models.get(NAME).loaded
    follow_script(loaded.client.async_engine.engine, loaded.tokenizer, script)
    return service


def scripted_checkpoint(template: str | None, special: Sequence[str], max_len: int) -> Checkpoint:
    """A tiny decoder with a token for each byte."""
    config = TokenizerConfig(kind="byte", extra_special=tuple(special))
    tokenizer = Tokenizer.train(["any text"], config)
    settings = {**SIZES, "kind": "decoder", "vocab_size": tokenizer.vocab_size, "max_len": max_len}
    model = build_model(ModelConfig.from_dict(settings), seed=3).eval()
    return Checkpoint(model, tokenizer, "lm", chat_template=template)


def follow_script(engine: Engine, tokenizer: Tokenizer, script: Script) -> None:
    """Make an engine generate the script. Beam searches are not changed."""
    run, scripts = engine.runner.run, dict[str, list[int]]()

    def ids_of(request_id: str, prompt: Sequence[int]) -> list[int]:
        if request_id not in scripts:
            text = script
            if not isinstance(text, str):
                text = text(tokenizer.decode(prompt, skip_special=False))
            scripts[request_id] = [*script_ids(tokenizer, text), tokenizer.id_of("end")]
        return scripts[request_id]

    def run_scripted(plan: Plan, chooser: StepChooser) -> list[Tensor]:
        choose = chooser.choose

        def choose_scripted(logits: NextTokenLogits) -> Any:
            for chunk, rows in chooser.sampled_rows():
                states = chooser.samples.get(chunk.request.id)
                if states is None:
                    continue
                ids = ids_of(chunk.request.id, chunk.request.prompt)
                place = len(states[chunk.index].output)
                for row in range(rows.start, rows.stop):
                    token = ids[min(place + row - rows.start, len(ids) - 1)]
                    logits.logits_NV[row, token] += BOOST
            return choose(logits)

        chooser.choose = choose_scripted  # type: ignore[method-assign]
        return run(plan, chooser)

    engine.runner.run = run_scripted  # type: ignore[method-assign, assignment]


def script_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A token for each byte, and for each name of a special token."""
    special = {name: index for index, name in special_ids(tokenizer).items()}
    names = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    ids: list[int] = []
    for part in re.split(f"({names})", text):
        ids += [special[part]] if part in special else tokenizer.encode(part, False)
    return ids
