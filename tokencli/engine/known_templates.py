"""Chat templates for files that carry none: by name, or recognised by the control tokens that only they use.

The formats are those that the models' authors published; llama.cpp keeps the same list (src/llama-chat.cpp).
"""

from collections.abc import Callable

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n{{ message.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PHI3 = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)

TEMPLATES = {"chatml": _CHATML, "llama3": _LLAMA3, "gemma": _GEMMA, "phi3": _PHI3, "mistral": _MISTRAL}

_MARKS = {
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "mistral": ("[INST]", "[/INST]"),
}


def recognised(is_control_token: Callable[[str], bool]) -> str | None:
    """The name of the template whose marks are all control tokens of the vocabulary; None where there is none."""
    return next((name for name, marks in _MARKS.items() if all(map(is_control_token, marks))), None)
