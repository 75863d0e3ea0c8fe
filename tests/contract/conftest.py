"""What the contract tests share. Requests of the clients to other services (price lists, traces) are switched off."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, Field

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"


class Weather(BaseModel):
    """A JSON document that every model completes within a few tokens."""

    sky: Literal["blue", "grey"]
    clouds: int = Field(ge=0, le=9)
    is_calm: bool
