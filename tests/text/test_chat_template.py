"""Conversations become the text that `transformers` makes of them, by the same templates."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from tests.text.chat_templates import CHATML, CONVERSATIONS, LLAMA3, QWEN25, TEMPLATES, talk
from weft.core.errors import DataError, UsageError
from weft.text.chat_template import ChatTemplate, find_template
from weft.text.special_tokens import SpecialTokens

SPECIALS = SpecialTokens(begin="<s>", end="</s>", pad="<pad>")
TOOL = {"name": "add", "parameters": {"a": {"type": "integer"}, "b": {"enum": ["<x>", "\u00e9"]}}}


@pytest.fixture(scope="module")
def theirs():
    backend = Backend(models.WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def expected(theirs, source, messages, prompt, **extra) -> str | None:
    """The text of the original; None where the template refuses the conversation."""
    try:
        text = theirs.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=prompt, **extra
        )
    except Exception:
        return None
    return text


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_has_the_text_that_transformers_makes(name, conversation, prompt, theirs):
    messages = CONVERSATIONS[conversation]
    text = expected(theirs, TEMPLATES[name], messages, prompt)
    template = ChatTemplate(TEMPLATES[name], SPECIALS)
    if text is None:
        with pytest.raises(UsageError, match="the chat template refuses this conversation: .+"):
            template.render(messages, prompt)
    else:
        assert template.render(messages, prompt) == text


@pytest.mark.parametrize(
    "call",
    [
        "replace('l', 'LL')", "replace('l', 'L', 1)", "center(30)", "center(30, '*')", "ljust(9)",
        "rjust(9, '.')", "zfill(12)",
    ],
)  # fmt: skip
def test_methods_that_make_longer_text_work_inside_a_loop(call, theirs):
    source = "{% for m in messages %}{% for i in [1, 2] %}[{{ m.content." + call + " }}]"
    source += "{% endfor %}{% endfor %}"
    for messages in CONVERSATIONS.values():
        text = expected(theirs, source, messages, False)
        assert text is not None and ChatTemplate(source).render(messages, False) == text


@pytest.mark.parametrize("source", [LLAMA3, QWEN25])
def test_further_variables_reach_the_template(source, theirs):
    extra = {"tools": [TOOL], "date_string": "1 Jan 2030"}
    messages = CONVERSATIONS["system"]
    text = expected(theirs, source, messages, True, **extra)
    assert ChatTemplate(source, SPECIALS).render(messages, **extra) == text
    assert '"add"' in text


def test_a_template_tells_the_time(theirs):
    source = "{{ strftime_now('%Y-%m-%d %%') }}"
    assert ChatTemplate(source).render(talk(("user", "a"))) == expected(
        theirs, source, talk(("user", "a")), False
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages|tojson }}{{ {'b': '<\u00e9>', 'a': 1}|tojson(true, 2, sort_keys=true) }}",
        "{{ [1, 2]|tojson(separators=(',', ':')) }}",
        "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}"
        "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}",
        "{{ dict(a=1) }}{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}",
        "{{ messages|groupby('role')|length }}{{ messages|map(attribute='role')|join(',') }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ 'ab'.format() }}",
        "{{ '{:>5}|{}'.format(3, messages[0].role) }}{{ ''['upper']() }}{{ 'a'|safe|upper }}",
        "{% macro m(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call m('y') %}z{% endcall %}",
        "{{ documents }}{{ tools }}{{ nothing }}{{ nothing is defined }}{{ none }}{{ range(3) }}",
    ],
)
def test_features_of_templates_work_as_in_transformers(source, theirs):
    messages = CONVERSATIONS["system"]
    text = expected(theirs, source, messages, False)
    assert text is not None
    assert ChatTemplate(source, SPECIALS).render(messages, False) == text


def test_roles_that_a_tokenizer_lacks_are_empty():
    source = "[{{ bos_token }}{{ mask_token }}{% if unk_token is defined %}!{% endif %}]"
    assert ChatTemplate(source, SPECIALS).render(talk(("user", "a"))) == "[<s>]"
    assert ChatTemplate(source).render(talk(("user", "a"))) == "[]"


def test_one_template_renders_many_conversations():
    template = ChatTemplate(CHATML)
    texts = [template.render(talk(("user", str(n)))) for n in range(3)]
    assert [text.count(f"user\n{n}<") for n, text in enumerate(texts)] == [1, 1, 1]


def test_a_long_conversation_is_not_too_long():
    turns = [("user" if n % 2 == 0 else "assistant", "word " * 400) for n in range(501)]
    for source in (CHATML, TEMPLATES["llama2"], TEMPLATES["mistral"], TEMPLATES["deepseek"]):
        text = ChatTemplate(source, SPECIALS).render(talk(*turns))
        assert text.count("word") == 400 * 501


def test_one_very_long_message_is_not_too_long():
    content = "\u00e9" * 5_000_000
    assert content in ChatTemplate(CHATML).render(talk(("user", content)))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages is empty: a conversation has at least one message"),
        ("hello", "messages is str: a conversation is a list"),
        ({"role": "user", "content": "a"}, "messages is dict: a conversation is a list"),
        (None, "messages is NoneType"),
        (["hello"], r"messages\[0\] is str: a message is"),
        ([{"content": "a"}], r"messages\[0\] has role None: it must be one of system, "),
        ([{"role": "god", "content": "a"}], r"messages\[0\] has role 'god'"),
        ([{"role": ["user"], "content": "a"}], r"has role \['user'\]"),
        ([{"role": "user"}], r"messages\[0\] has content of type NoneType: it must be text"),
        (talk(("user", "a")) + [{"role": "user", "content": 5}], r"messages\[1\] .*type int"),
        ([{"role": "user", "content": "a", "x": object()}], r"messages\[0\] holds a object"),
        ([{"role": "user", "content": "a", "x": {1, 2}}], r"messages\[0\] holds a set"),
    ],
)
def test_what_is_no_conversation_is_refused_in_one_sentence(messages, reason):
    with pytest.raises(UsageError, match=reason) as error:
        ChatTemplate(CHATML).render(messages)
    assert "\n" not in str(error.value)


def test_values_without_end_are_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(UsageError, match="things holds a list: .* 80 deep at most"):
        ChatTemplate(CHATML).render(talk(("user", "a")), things=endless)


def test_objects_of_the_caller_do_not_enter():
    class Loud(str):
        def shout(self) -> str:
            return "!"

    messages = [{"role": "user", "content": Loud("a")}]
    assert ChatTemplate("{{ messages[0].content }}").render(messages) == "a"
    with pytest.raises(DataError, match="has no attribute 'shout'"):
        ChatTemplate("{{ messages[0].content.shout() }}").render(messages)


@pytest.mark.parametrize("source", ["{{ range(999999999) }}", "{{ raise_exception('No.') }}", "{{"])
def test_an_error_of_a_template_has_one_full_stop_a_sentence(source):
    with pytest.raises((DataError, UsageError)) as error:
        ChatTemplate(source).render(talk(("user", "a")))
    text = str(error.value)
    assert text.endswith(".") and ".." not in text and ". ." not in text, text


# --- where templates live -------------------------------------------------------------------


def write(folder, name, content) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")


def test_a_folder_without_a_template_has_none(tmp_path):
    assert find_template(tmp_path) is None
    write(tmp_path, "tokenizer_config.json", {"chat_template": None})
    assert find_template(tmp_path) is None


def test_a_template_is_found_where_models_keep_it(tmp_path):
    write(tmp_path, "tokenizer_config.json", {"chat_template": "in the config"})
    assert find_template(tmp_path) == "in the config"
    write(tmp_path, "chat_template.json", {"chat_template": "in the older file"})
    assert find_template(tmp_path) == "in the older file"
    write(tmp_path, "chat_template.jinja", "{{ 'in its own' }}\n")
    assert find_template(tmp_path) == "{{ 'in its own' }}\n"


@pytest.mark.parametrize(
    "named",
    [
        [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
        {"rag": "r", "default": "d"},
        [{"name": "only", "template": "d"}],
    ],
)
def test_of_several_templates_the_default_is_taken(named, tmp_path):
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert find_template(tmp_path) == "d"


@pytest.mark.parametrize("wrong", [7, ["x"], [{"name": "default"}], {"default": 5}])
def test_what_is_no_template_is_named_with_its_file(wrong, tmp_path):
    write(tmp_path, "tokenizer_config.json", {"chat_template": wrong})
    with pytest.raises(DataError, match=r"tokenizer_config\.json: chat_template is neither"):
        find_template(tmp_path)


# --- tools, reasoning, and prompts that continue a message ------------------------------------

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
CALLED = [
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "content": "21", "tool_call_id": "call_1", "name": "weather"},
]
FUNCTIONS = QWEN25.replace("tool_call.name", "tool_call.function.name").replace(
    "tool_call.arguments", "tool_call.function.arguments"
)


def test_calls_and_results_have_the_text_that_transformers_makes(theirs):
    text = expected(theirs, FUNCTIONS, CALLED, True, tools=[WEATHER])
    assert ChatTemplate(FUNCTIONS, SPECIALS).render(CALLED, tools=[WEATHER]) == text
    assert '{"name": "weather", "arguments": {"a": 1}}' in text


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ('{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ("not JSON", "not JSON"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_passed_as_an_object_where_they_are_one(arguments, passed):
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert json.loads(ChatTemplate(source).render(messages)) == passed


def test_empty_tool_calls_are_none():
    source = "{{ 'tool_calls' in messages[0] }}"
    for calls in ([], None):
        message = {"role": "assistant", "content": "a", "tool_calls": calls}
        assert ChatTemplate(source).render([message]) == "False"


def test_null_content_is_passed_and_empty_where_a_template_fails_on_it():
    assert ChatTemplate("{{ messages[1].content is none }}").render(CALLED) == "True"
    joined = "{% for m in messages %}<{{ '' + m.content }}>{% endfor %}"
    assert ChatTemplate(joined).render(CALLED) == "<How warm is it?><><21>"
    with pytest.raises(DataError, match="division by zero"):
        ChatTemplate("{{ 1 / 0 }}").render(CALLED)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_the_names_that_templates_read(key):
    message = {"role": "assistant", "content": "a", key: "hm"}
    source = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert ChatTemplate(source).render([message]) == "hm hm"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": None}, r"messages\[0\] has content of type NoneType"),
        ({"role": "user", "tool_calls": [CALL]}, "role is 'user': only the assistant calls tools"),
        ({"tool_calls": "x"}, r"messages\[0\].tool_calls is str: it must be a list"),
        ({"tool_calls": ["x"]}, r"messages\[0\].tool_calls\[0\] is str: a tool call is"),
        ({"tool_calls": [{}]}, r"tool_calls\[0\].function is None: it must be an object with"),
        ({"tool_calls": [{"function": {"name": ""}}]}, "must be an object with the name of a tool"),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
            r"tool_calls\[0\].function.arguments is int: it must be an object or its JSON",
        ),
        ({"reasoning_content": 5}, "reasoning_content of type int: it must be text"),
    ],
)
def test_wrong_calls_are_refused_in_one_sentence(message, reason):
    with pytest.raises(UsageError, match=reason):
        ChatTemplate(CHATML).render([{"role": "assistant", "content": "a", **message}])


def test_a_template_says_whether_it_uses_tools():
    guarded = "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}"
    for source in (QWEN25, LLAMA3, guarded, "{% for tool in tools %}{{ tool }}{% endfor %}"):
        assert ChatTemplate(source).uses_tools
    for source in (CHATML, "tools {# tools #} {{ 'tools' }} {{ messages[0].tools }}"):
        assert not ChatTemplate(source).uses_tools


@pytest.mark.parametrize("name", ["chatml", "llama2", "llama3", "mistral", "gemma", "qwen2.5"])
def test_a_final_message_is_continued_as_in_transformers(name, theirs):
    for content in ("b", "  the answer is ", "x\n", "b b"):
        messages = talk(("user", "a b"), ("assistant", content))
        theirs_text = theirs.apply_chat_template(
            messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
        )
        template = ChatTemplate(TEMPLATES[name], SPECIALS)
        assert template.render(messages, continue_final_message=True) == theirs_text
        assert theirs_text.rstrip().endswith(content.strip())


def test_what_cannot_be_continued_is_refused():
    template = ChatTemplate(CHATML)
    with pytest.raises(UsageError, match="are both set"):
        template.render(talk(("user", "a")), True, continue_final_message=True)
    with pytest.raises(UsageError, match="the last message has no content to continue"):
        template.render(CALLED[:2], continue_final_message=True)
    with pytest.raises(UsageError, match="does not write the content of the last message"):
        ChatTemplate("hello").render(talk(("user", "a")), continue_final_message=True)


def test_a_variable_cannot_replace_the_messages():
    source = "{{ messages[0].content }} {{ self_ }} {{ x }}"
    extra = {"messages": [], "self_": 1, "x": {"y": 2}}
    assert ChatTemplate(source).render(talk(("user", "a")), **extra) == "a 1 {'y': 2}"


def test_an_agents_deep_schema_reaches_the_template():
    schema: dict = {}
    for _ in range(64):
        schema = {"items": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    text = ChatTemplate("{{ tools | tojson }}").render(talk(("user", "a")), tools=[tool])
    assert json.loads(text) == [tool]
