"""Tokenizer folders as models come in: a small byte-level BPE, and templates of the known kinds."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Says nothing of what is learned: it is found from prefixes."""

GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Says itself what is learned."""

LLAMA = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}\n"
    "{{- message['content'] | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n"
    "{%- endif %}\n"
)
"""Begins with `bos`, trims contents, and ends a turn with a token that is not `eos`."""

TOOLS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is defined %}{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{- '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Writes tool calls as JSON."""

FORGETFUL = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{{ message['content'].split('</think>')[-1] }}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Strips earlier thoughts, so that a longer conversation does not begin with a shorter one."""

_VISION_TURNS = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{%- set content = message['content'] %}"
    "{%- if message['role'] == 'assistant' %}{% generation %}{{ parts(content) }}"
    "{{- '<|im_end|>' }}{% endgeneration %}{% else %}{{ parts(content) + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_VISION_PARTS = (
    "{%- macro parts(content) %}{% if content is string %}{{ content }}{% else %}"
    "{%- for part in content %}{% if part['type'] == 'image' or 'image' in part %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)
VISION = _VISION_PARTS + _VISION_TURNS
"""Writes placeholders where the parts of a message stand, and says itself what is learned."""

PICTURES_FIRST = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for kind in ('video', 'image', 'text') %}"
    "{% for part in message['content'] if part['type'] == kind %}"
    "{{ part['text'] if kind == 'text' else '<' + kind + '>' }}{% endfor %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)
"""Writes the items of a message before its texts, and videos before images."""

MEDIA_TOKENS = (
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<image>", "<video>"),
)

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
ADDED = ("<think>", "</think>")
"""Added tokens that are not special: a document may hold them."""
BOS = "<|begin_of_text|>"

_WORDS = (
    *("user", "assistant", "system", "tool", "Hello", " Hello", " world", " the", "The", " answer"),
    *(" is", "42", "im", "end", "start", "\n\n", "  ", "é", " caf", "::"),
)


def build_tokenizer() -> Tokenizer:
    """Build a byte-level BPE of a few words; its ids never change, for nothing is trained."""
    # Special tokens come first, as in some models, then the bytes in the order of their names.
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: dict[tuple[str, str], None] = {}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in _WORDS:
        mapped = split.pre_tokenize_str(word)[0][0]
        merges |= {(mapped[:place], mapped[place]): None for place in range(1, len(mapped))}
    names += dict.fromkeys(left + right for left, right in merges)
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in ADDED])
    return tokenizer


def build_media_tokenizer(*, special: bool = True) -> Tokenizer:
    """Build it with tokens that stand for images and videos."""
    tokenizer = build_tokenizer()
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    add([AddedToken(name, special=special, normalized=False) for name in MEDIA_TOKENS])
    return tokenizer


def write_folder(
    folder: Path, template: str | None, *, in_config: bool = False, tokenizer: Any = None
) -> Path:
    """Write a tokenizer's folder, its template in a file of its own or in the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or build_tokenizer()).save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": BOS, "special": True},
        "eos_token": "<|im_end|>",
    }
    if template is not None and in_config:
        config["chat_template"] = template
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
