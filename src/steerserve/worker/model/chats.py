"""The chat template of a tokenizer. It is only read here; the control plane renders it in a process of its own."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from steerserve.errors import Refusal
from steerserve.messages import ChatTemplate

TEMPLATE_CHARACTERS = 1 << 20
"""The longest chat template. It goes to another process with each request."""


def template_of(tokenizer: PreTrainedTokenizerBase) -> ChatTemplate | None:
    """The default template; None also where the tokenizer has several templates and none of them is the default.

    A tokenizer reads its templates from `chat_template.jinja`, from the folder `additional_chat_templates` and from
    `tokenizer_config.json`, as one text or as a list of named texts.

    Raises:
        Refusal: MODEL_LOAD_FAILED for a template of more than TEMPLATE_CHARACTERS.
    """
    try:
        source = tokenizer.get_chat_template()
    except ValueError:
        return None
    if not isinstance(source, str) or not source:
        return None
    if len(source) > TEMPLATE_CHARACTERS:
        why = f"the chat template is longer than {TEMPLATE_CHARACTERS} characters"
        raise Refusal("MODEL_LOAD_FAILED", why)
    return ChatTemplate(source, dict(tokenizer.special_tokens_map))
