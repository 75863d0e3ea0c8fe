"""What the contract tests share. The clients' own traffic beside the service (price lists, traces) is off."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, Field

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"


class Weather(BaseModel):
    """A document that every model finishes within a few tokens."""

    sky: Literal["blue", "grey"]
    clouds: int = Field(ge=0, le=9)
    is_calm: bool
