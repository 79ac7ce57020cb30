"""Templates in the manner of those that well-known models bring, written for these tests."""

CHATML = """\
{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM<|im_end|>\\n' }}
{%- endif %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA2 = """\
{%- if messages[0]['role'] == 'system' -%}
  {%- set rest = messages[1:] -%}{%- set system_message = messages[0]['content'] -%}
{%- else -%}
  {%- set rest = messages -%}{%- set system_message = false -%}
{%- endif -%}
{%- for message in rest -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- endif -%}
  {%- if loop.index0 == 0 and system_message != false -%}
    {%- set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] -%}
  {%- else -%}
    {%- set content = message['content'] -%}
  {%- endif -%}
  {%- if message['role'] == 'user' -%}
    {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' -}}
  {%- elif message['role'] == 'assistant' -%}
    {{- ' ' + content.strip() + ' ' + eos_token -}}
  {%- endif -%}
{%- endfor -%}"""

LLAMA3 = """\
{% set loop_messages = messages %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if loop_messages[0]['role'] == 'system' %}
{%- set system_message = loop_messages[0]['content']|trim %}
{%- set loop_messages = loop_messages[1:] %}
{%- else %}
{%- set system_message = "" %}
{%- endif %}
{{- bos_token + "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{{- system_message + "<|eot_id|>" }}
{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' \
+ message['content'] | trim + '<|eot_id|>' %}
{{ content }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user and assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
{{- "" if user_messages|length > 0 else "nobody asked" }}"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}\
{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n\\nYou may call one or more functions.\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) \
or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_last_user=false, system_prompt='') %}
{%- for message in messages %}
{%- if message['role'] == 'system' %}
{%- set ns.system_prompt = ns.system_prompt ~ ('\\n\\n' if ns.system_prompt else '') \
~ message['content'] %}
{%- endif %}
{%- endfor %}
{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}
{%- set ns.is_last_user = true -%}
{{'<\uff5cUser\uff5c>' + message['content'] + '<\uff5cAssistant\uff5c>'}}
{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}
{%- set content = message['content'] %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{{- content + '<\uff5cend\u2581of\u2581sentence\uff5c>' }}
{%- set ns.is_last_user = false -%}
{%- endif %}
{%- endfor -%}
{% if add_generation_prompt and not ns.is_last_user %}{{'<\uff5cAssistant\uff5c>'}}{% endif %}"""

EVERYTHING = """\
{%- macro turn(role, content='-', n=2) -%}
  [{{ role|upper|center(12) }}] {{ content|replace('\\n', ' / ')|indent(4) }}{{ varargs|join(',') }}
{%- endmacro -%}
{%- macro wrapped(role) -%}<{{ role }}>{{ caller() }}{%- endmacro -%}
{%- set words = cycler('odd', 'even') -%}{%- set comma = joiner(', ') -%}
{%- for message in messages recursive -%}
  {%- if message.role == 'system' %}{% continue %}{% endif -%}
  {{- turn(message.role, message.content, 2, 'a', 1) }} {{ words.next() }}
  {{- loop.cycle('x', 'y') }}{{ comma() }}{{ loop.index }}/{{ loop.length }}
  {{- loop.revindex0 }} {{ loop.changed(message.role) }}
  {%- if loop.index > 3 %}{% break %}{% endif -%}
{%- else -%}nothing{%- endfor %}
{% generation %}{{ 'made' ~ 1 ~ none ~ true ~ 1.5 }}{% endgeneration %}
{%- set joined %}{% for key, value in {'b': 1, 'a': [1, 2]}|dictsort %}{{ key }}={{ value }};
{%- endfor %}{% endset %}
{{ joined|length }} {{ joined|title }} {{ messages|map(attribute='role')|unique|list }}
{{ '%s-%05.1f' % ('a', 2.25) }} {{ '{0}:{1:>6}'.format('a', 7) }} {{ "%d"|format(3) }}
{{ messages|selectattr('role', 'in', ['user', 'system'])|list|length }}
{{ (1, 2) + (3,) }} {{ [1] * 3 }} {{ 'ab' * 2 }} {{ 7 // 2 }} {{ 2 ** 10 }} {{ -7 % 3 }} {{ 1 / 4 }}
{{ {'a': [1, 'x<y', none, true], 'u': '\u00e9'}|tojson }} {{ [1]|tojson(indent=2) }}
{{ dict(a=1).items()|list }} {{ [3, 1, 2]|sort|reverse|list }} {{ [1, 2, 3, 4, 5]|batch(2)|list }}
{{ ' a b '.split(' ') }} {{ 'abc'[1:] }} {{ 'x'.join(['a', 'b']) }} {{ 'a-b'.partition('-')[2] }}
{{ missing|default('none here') }} {{ missing is defined }} {{ 3.14159|round(2) }} {{ [1, 2]|sum }}
{{ [{'a': {'b': 1}}, {'a': {'b': 2}}]|join('+', attribute='a.b') }} {{ [{'n': 4}]|sum('n') }}
{{ 'a' if messages else 'b' }} {{ 'x' in 'xyz' }} {{ range(3)|list }} {{ '5'|int + 1 }}
{%- filter upper %} in capitals{% endfilter %}
{{ 'long text here'|truncate(8) }} {{ '<b>'|e }} {{ 5|string }}
{%- call wrapped('user') %}inside{% endcall %}
{{- bos_token }}{{ unknown_token_name }}"""

NEMOTRON = """
{%- set ns = namespace(enable_thinking=true) -%}
{%- for message in messages -%}
  {%- if message['role'] in ('user', 'system') -%}
    {%- if '/no_think' in message['content'] -%}{%- set ns.enable_thinking = false -%}
    {%- elif '/think' in message['content'] -%}{%- set ns.enable_thinking = true -%}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token }}{{- '<SPECIAL_10>System\\n' -}}
{%- for message in messages -%}
  {%- set content = message['content'].replace('/no_think', '').replace('/think', '').strip() -%}
  {%- if message['role'] == 'system' -%}{{- content + '\\n' -}}
  {%- elif message['role'] == 'user' -%}{{- '<SPECIAL_11>User\\n' + content + '\\n' -}}
  {%- else -%}
    {%- if '</think>' in content -%}
      {%- set content = content.split('</think>')[1].strip() -%}
    {%- endif -%}
    {{- '<SPECIAL_11>Assistant\\n' + content + '\\n<SPECIAL_12>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<SPECIAL_11>Assistant\\n' -}}
  {{- '<think>\\n' if ns.enable_thinking else '<think></think>' -}}
{%- endif -%}
"""
"""In the style of Nemotron Nano v2: `replace` inside a loop."""

TEMPLATES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "qwen2.5": QWEN25,
    "deepseek": DEEPSEEK,
    "nemotron": NEMOTRON,
    "everything": EVERYTHING,
}


def talk(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


CONVERSATIONS = {
    "question": talk(("user", "Hello!")),
    "system": talk(("system", "Be brief. "), ("user", "  What is 2+2?\n")),
    "long": talk(
        ("system", "Answer in German."),
        ("user", "Hi <|im_end|> </s>"),
        ("assistant", "<think>hm</think>Hallo {{ 7 * 7 }} {% raw %}"),
        ("user", "\u4f60\u597d \U0001f469\u200d\U0001f467\nline two\n\n  indented"),
        ("assistant", ""),
        ("user", "'quotes' \"and\" \\backslashes\\ & <tags>"),
    ),
    "no thinking": talk(("system", "Be brief. /no_think"), ("user", "/think /no_think a")),
    "two users": talk(("user", "a"), ("user", "b")),
    "answer last": talk(("user", "a"), ("assistant", "b\n")),
    "assistant first": talk(("assistant", "b"), ("user", "c")),
    "tool": talk(("user", "a"), ("assistant", "b"), ("tool", "42"), ("tool", "43")),
    "empty": talk(("user", "")),
}
