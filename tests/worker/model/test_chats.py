"""The chat template of a tokenizer, in each of the places where a checkpoint may have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from steerserve.messages import ChatTemplate
from steerserve.worker.model import chats
from tests.refusals import refusal_of
from tests.worker import models
from tests.worker.running import with_bos

SPELLED = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ eos_token }}"
NAMED = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": SPELLED}]
BESIDE = {"chat_template.jinja": SPELLED, "additional_chat_templates/tool_use.jinja": "no"}

PLACES: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"chat_template.jinja": SPELLED}, True),
    ({"chat_template": SPELLED}, True),
    ({"chat_template": NAMED}, True),
    ({"chat_template": "old", "chat_template.jinja": SPELLED}, True),
    (BESIDE, True),
    ({"chat_template": NAMED[:1]}, False),
    ({"chat_template": ""}, False),
    ({"chat_template": 5}, False),
]


def tokenizer(folder: Path, files: dict[str, Any]) -> Any:
    """A tokenizer that was read from a folder with these files, and these values in its configuration."""
    with_bos(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = folder / "tokenizer_config.json"
    values = json.loads(config.read_text())
    for name, value in files.items():
        if name.endswith(".jinja"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(value)
        else:
            values[name] = value
    config.write_text(json.dumps(values))
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.parametrize(("files", "has_template"), PLACES, ids=range(len(PLACES)))
def test_the_default_template_is_read_from_every_place(
    tmp_path: Path, files: dict[str, Any], has_template: bool
) -> None:
    tokens = models.tokenizer().special_tokens_map
    expected = ChatTemplate(SPELLED, tokens) if has_template else None
    assert chats.template_of(tokenizer(tmp_path, files)) == expected
    assert "bos_token" in tokens


def test_a_template_beyond_any_length_is_refused(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, {"chat_template.jinja": " " * (chats.TEMPLATE_CHARACTERS + 1)})
    assert refusal_of(chats.template_of, found).code == "MODEL_LOAD_FAILED"
