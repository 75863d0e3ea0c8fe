"""The names of the routes of `/v1` that answer with a model, and of the kinds of engines."""

from __future__ import annotations

CHAT = "chat"
COMPLETIONS = "completions"
EMBEDDINGS = "embeddings"
RESPONSES = "responses"

CHECKPOINT = "checkpoint"
GGUF = "gguf"

OUTPUT_LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities in the text of a response."""
