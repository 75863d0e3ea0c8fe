"""The calls of the command line tool `llm`, with the service in its list of further models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from told import BASE_URL, MODEL, STORY, Calls

calls = Calls("llm", "openai")
FOLDER = Path(os.environ["LLM_USER_PATH"])
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}, "is_calm": {"type": "boolean"}},
    "required": ["sky", "is_calm"],
    "additionalProperties": False,
}
FOLDER.mkdir(exist_ok=True)
(FOLDER / "extra-openai-models.yaml").write_text(
    f"""
- {{model_id: chat, model_name: {MODEL}, api_base: {BASE_URL}, supports_schema: true}}
- {{model_id: text, model_name: {MODEL}, api_base: {BASE_URL}, completion: true}}
"""
)


def llm(*words: str) -> str:
    command = [sys.executable, "-m", "llm", *words, "--key", "any", "-o", "temperature", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return ran.stdout.strip()


@calls.works("chat, streamed and with `--no-stream`")
def chat() -> None:
    ask = ("-m", "chat", STORY, "-o", "max_tokens", "8")
    assert llm(*ask) == llm(*ask, "--no-stream") != ""


@calls.works("`completion: true`, streamed")
def complete() -> None:
    assert llm("-m", "text", "One day", "-o", "max_tokens", "8")


@calls.works("`supports_schema: true` with `--schema` and `--no-stream`")
def schema() -> None:
    made = llm("-m", "chat", STORY, "--no-stream", "--schema", json.dumps(SCHEMA))
    assert set(json.loads(made)) == {"sky", "is_calm"}


@calls.refused("`--schema` streamed", says="cannot be streamed", instead="`--no-stream`")
def streamed_schema() -> None:
    llm("-m", "chat", STORY, "--schema", json.dumps(SCHEMA))


calls.tell()
