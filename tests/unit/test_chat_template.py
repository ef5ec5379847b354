"""Chat templates as real model files carry them, and as an unfriendly file could."""

import re
import time

import pytest
from jinja2 import Template

from tokencli.core import Message, Thinking
from tokencli.engine import chat_template
from tokencli.engine.chat_template import render
from tokencli.engine.known_templates import TEMPLATES, recognised
from tokencli.errors import BadModelFile

SYSTEM, USER = Message("system", "Be brief."), Message("user", "Why is the sky blue?")
CONVERSATION = (SYSTEM, USER, Message("assistant", "Air scatters blue."), Message("user", "And at dusk?"))

CHATML = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

LLAMA_3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""


def rendered(template: str, *messages: Message) -> str:
    return render(template, messages or (USER,), "<s>", "</s>").text


def failure(template: str, *messages: Message) -> str:
    """What is said of a template that must fail: one line, as a fault of the file."""
    with pytest.raises(BadModelFile, match="chat template") as caught:
        rendered(template, *messages)
    assert "\n" not in caught.value.what
    assert caught.value.hint
    return caught.value.what


class TestRealTemplates:
    def test_chatml(self) -> None:
        assert rendered(CHATML, *CONVERSATION[:2]) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
        )
        assert rendered(CHATML, USER).startswith("<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n")

    def test_llama_3_knows_the_date(self) -> None:
        prompt = rendered(LLAMA_3, SYSTEM, USER)
        assert re.fullmatch(
            r"<s><\|start_header_id\|>system<\|end_header_id\|>\n\nToday Date: \d\d \w+ \d{4}\n\nBe brief\.<\|eot_id\|>"
            r"<\|start_header_id\|>user<\|end_header_id\|>\n\nWhy is the sky blue\?<\|eot_id\|>"
            r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n",
            prompt,
        )

    def test_gemma_gets_the_system_message_joined_to_the_first_user_message(self) -> None:
        assert rendered(GEMMA, *CONVERSATION) == (
            "<s><start_of_turn>user\nBe brief.\n\nWhy is the sky blue?<end_of_turn>\n<start_of_turn>model\nAir scatters blue."
            "<end_of_turn>\n<start_of_turn>user\nAnd at dusk?<end_of_turn>\n<start_of_turn>model\n"
        )

    def test_roles_that_do_not_alternate_are_joined_where_the_template_is_strict(self) -> None:
        twice = render(GEMMA, (USER, USER), "<s>", "</s>")
        question = "Why is the sky blue?"
        assert twice.text == f"<s><start_of_turn>user\n{question}\n\n{question}<end_of_turn>\n<start_of_turn>model\n"
        assert twice.notes == ("the model's template wants the roles to alternate: neighbours are joined",)
        both = render(GEMMA, (SYSTEM, USER, USER), "<s>", "</s>")
        assert both.text.startswith(f"<s><start_of_turn>user\nBe brief.\n\n{question}\n\n{question}")
        assert len(both.notes) == 2, "what was changed is said"

    def test_a_template_that_takes_the_messages_changes_nothing(self) -> None:
        assert render(CHATML, (USER, USER), "", "").notes == ()
        assert rendered(CHATML, USER, USER).count("<|im_start|>user") == 2

    def test_a_template_that_refuses_more_than_that_fails_in_its_own_words(self) -> None:
        assert "System role not supported" in failure(GEMMA, SYSTEM)
        assert "roles must alternate" in failure(GEMMA, Message("assistant", "Hello"))

    def test_json_is_written_as_it_is_and_loops_can_be_left(self) -> None:
        template = "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m | tojson }};{% endfor %}"
        messages = (Message("user", "a<b> & 'ü'"), Message("assistant", "你好"), USER)
        assert rendered(template, *messages) == (
            """{"role": "user", "content": "a<b> & 'ü'"};{"role": "assistant", "content": "你好"};"""
        )

    def test_white_space_around_blocks_is_that_of_hugging_face(self) -> None:
        assert rendered("a\n    {% if true %}\n  b\n    {% endif %}\nc\n") == "a\n  b\nc"

    def test_the_special_tokens_are_the_models_own(self) -> None:
        assert rendered("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}") == "<s>|</s>|"

    @pytest.mark.parametrize(
        ("template", "prompt"),
        [
            ("{%- generation -%}{{ messages[0].content[:3] }}{%- endgeneration -%}", "Why"),
            ("{% if tools is not none %}tools{% endif %}{% if documents is not none %}documents{% endif %}", ""),
            ("{{ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':'), sort_keys=True) }}", '{"a":[1,2],"b":1}'),
        ],
        ids=["generation tag", "no tools, no documents", "options of tojson"],
    )
    def test_what_published_templates_rely_on(self, template: str, prompt: str) -> None:
        assert rendered(template) == prompt

    def test_what_a_user_writes_is_no_template(self) -> None:
        assert "{{ 7 * 7 }}{% raw %}" in rendered(CHATML, Message("user", "{{ 7 * 7 }}{% raw %}"))


class TestFailures:
    @pytest.mark.parametrize(
        "template",
        [
            "{{",
            "{% if %}",
            "{% for x in messages %}",
            "{% unknown %}",
            "{{ messages | unknown }}",
            "{{ nothing.at.all }}",
            "{{ messages[99].content }}",
            "{{ nothing() }}",
            "{{ 1 / 0 }}",
            "{{ 'a' + 1 }}",
            "{{ 'a' * none }}",
            "{{ 2 ** 'a' }}",
            "{{ raise_exception('first\nsecond') }}",
            "{% include 'file' %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% for m in messages %}" * 30 + "{% endfor %}" * 30,
        ],
    )
    def test_a_template_that_cannot_be_rendered_is_a_fault_of_the_file(self, template: str) -> None:
        assert failure(template)

    def test_an_undefined_name_alone_is_empty(self) -> None:
        assert rendered("a{{ nothing }}b{% if nothing %}c{% endif %}") == "ab"

    @pytest.mark.parametrize(
        "template",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.__init__.__globals__ }}",
            "{{ raise_exception.__globals__['datetime'] }}",
            "{{ strftime_now.__code__.co_code }}",
            "{{ cycler.__init__.__globals__.os.system('true') }}",
            "{{ self.__init__.__globals__ }}",
            "{{ '{0.__class__.__mro__}'.format('') }}",
            "{{ (messages | map(attribute='__class__') | list)[0].__base__ }}",
            "{{ messages.append('x') }}",
            "{{ messages.clear() }}",
        ],
    )
    def test_the_sandbox_keeps_a_template_inside(self, template: str) -> None:
        assert failure(template)


class TestLimits:
    def test_an_endless_template_ends_by_the_time_limit(self) -> None:
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"
        assert "longer than 2 s" in failure(endless)

    def test_an_endless_compilation_ends_by_the_time_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chat_template, "TIME_LIMIT_SECONDS", 0.05)
        began = time.monotonic()
        assert "longer than 0.05 s" in failure("{{ 1 }}" * 20_000)
        assert time.monotonic() - began < 1

    def test_a_template_is_compiled_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = []
        plain = chat_template._Environment.from_string

        def from_string(self: chat_template._Environment, source: str) -> Template:
            compiled.append(source)
            return plain(self, source)

        monkeypatch.setattr(chat_template._Environment, "from_string", from_string)
        template = "{% set n = namespace(x=0) %}{% set n.x = n.x + 1 %}once {{ n.x }} {{ messages[0].content }}"
        texts = [rendered(template, Message("user", text)) for text in ("a", "b")]
        assert (texts, compiled) == (["once 1 a", "once 1 b"], [template])

    def test_the_time_limit_ends_a_loop_that_calls_nothing(self) -> None:
        rounds = 0

        def spin() -> None:
            nonlocal rounds
            for _ in range(2_000_000):
                rounds += 1

        with pytest.raises(chat_template._TooLong), chat_template._time_limit(0.01):
            spin()
        assert rounds < 2_000_000

    @pytest.mark.parametrize(
        "template",
        [
            "{{ 'a' * 10**9 }}",
            "{{ 10**9 * 'a' }}",
            "{{ ['a'] * 10**9 }}",
            "{{ ('a' * 2**20) * 2**20 }}",
            "{{ 'a' * 2**10 * 2**10 * 2**10 }}",
            "{% set s = 'a' * 1000 %}{{ s * 1000 * 1000 }}",
            "{{ 2 ** (10**9) }}",
            "{{ 9 ** (9 ** 9) }}",
            "{{ range(10**9) | list }}",
        ],
    )
    def test_an_operator_that_builds_too_much_is_refused(self, template: str) -> None:
        assert failure(template)

    @pytest.mark.parametrize(
        "template",
        [
            "{% set n = namespace(s='ab') %}{% for _ in range(23) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",
            "{{ ('%016777216d' % 1) | length }}",
            "{{ (((9 ** 64) ** 64) ** 64) ** 6 > 1 }}",
        ],
        ids=["plus", "percent", "powers of powers"],
    )
    def test_megabytes_are_too_much_however_they_are_built(self, template: str) -> None:
        assert failure(template)

    @pytest.mark.parametrize(
        ("template", "text"),
        [
            ("{{ 'ab' * 3 }}{{ 2 * 'c' }}", "abababcc"),
            ("{{ '-' * 4096 }}", "-" * 4096),
            ("{{ 10**9 * 10**9 }}", "1000000000000000000"),
            ("{{ 2 ** 10 }}{{ 2 ** -1 }}", "10240.5"),
            ("{{ 0.5 * 4 }}", "2.0"),
            ("{{ [1, 2] * 2 }}", "[1, 2, 1, 2]"),
            ("{{ loop_count * 2 if loop_count else 7 % 4 }}", "3"),
        ],
    )
    def test_ordinary_arithmetic_is_allowed(self, template: str, text: str) -> None:
        assert rendered(template) == text

    def test_a_long_conversation_is_no_endless_template(self) -> None:
        turns = [Message("user", "Why? " * 500), Message("assistant", "Because. " * 500)] * 200
        assert len(rendered(CHATML, *turns)) > 1_000_000


class TestThinking:
    QWEN = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ messages[0].content }}"
    DEEPSEEK = (
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
        "{{ messages[0].content }}{% if thinking %}<think>{% else %}</think>{% endif %}"
    )
    GPT_OSS = (
        "{% macro system() %}{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
        "Reasoning: {{ reasoning_effort }} {% endmacro %}{{ system() }}"
        "{% for message in messages %}{% if 'thinking' in message %}{{ message.thinking }}{% endif %}"
        "{{ message.content }}{% endfor %}"
    )
    PAST = "{# no enable_thinking #}{% set thinking = messages[0].thinking %}{{ thinking }}{{ messages[0].content }}"
    OSS = "Reasoning: {{ reasoning_effort or 'medium' }} {{ messages[0].content }}"

    @pytest.mark.parametrize(
        ("template", "thinking", "text", "note"),
        [
            (QWEN, "on", "Why is the sky blue?", None),
            (QWEN, "off", "<think></think>Why is the sky blue?", None),
            (QWEN, "high", "Why is the sky blue?", "this model's template knows no levels of reasoning"),
            (OSS, "on", "Reasoning: medium Why is the sky blue?", None),
            (OSS, "high", "Reasoning: high Why is the sky blue?", None),
            (OSS, "off", "Reasoning: low Why is the sky blue?", "this model cannot leave reasoning out: asked for little of it"),
            (DEEPSEEK, "off", "Why is the sky blue?</think>", None),
            (DEEPSEEK, "high", "Why is the sky blue?<think>", "this model's template knows no levels of reasoning"),
            (
                GPT_OSS,
                "off",
                "Reasoning: low Why is the sky blue?",
                "this model cannot leave reasoning out: asked for little of it",
            ),
            (PAST, "off", "Why is the sky blue?", "this model's template knows no switch for reasoning"),
            (CHATML, "off", None, "this model's template knows no switch for reasoning"),
        ],
    )
    def test_a_template_is_asked_in_the_words_that_it_knows(
        self, template: str, thinking: Thinking, text: str | None, note: str | None
    ) -> None:
        found = render(template, (USER,), "", "", thinking)
        assert found.text == (rendered(template) if text is None else text)
        assert found.notes == ((note,) if note else ())

    def test_a_template_that_cannot_be_read_is_a_fault_of_the_file_here_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(BadModelFile, match="chat template"):
            render("{% if %}", (USER,), "", "", "off")
        monkeypatch.setattr(chat_template, "TIME_LIMIT_SECONDS", 0.05)
        with pytest.raises(BadModelFile, match=r"longer than 0\.05 s"):
            render("{{ 2 }}" * 20_000, (USER,), "", "", "off")


class TestKnownTemplates:
    @pytest.mark.parametrize("name", TEMPLATES)
    def test_each_takes_a_conversation_with_and_without_a_system_message(self, name: str) -> None:
        for messages in (CONVERSATION, CONVERSATION[1:]):
            prompt = rendered(TEMPLATES[name], *messages)
            assert [message.content in prompt for message in messages] == [True] * len(messages)
            asked = render(TEMPLATES[name], messages, "<s>", "</s>", ask=False).text
            assert prompt.startswith(asked), "what asks for the answer comes last"

    def test_a_vocabulary_is_recognised_by_all_marks_of_a_format(self) -> None:
        assert recognised({"<|im_start|>", "<|im_end|>", "<think>"}.__contains__) == "chatml"
        assert recognised({"<start_of_turn>", "<end_of_turn>"}.__contains__) == "gemma"
        assert recognised({"<|im_start|>"}.__contains__) is None
        assert recognised(lambda _text: False) is None
