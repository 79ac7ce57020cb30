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
    with pytest.raises(UsageError, match="things holds a list: .* 32 deep at most"):
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
