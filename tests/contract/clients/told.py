"""How a client's script tells the runner what it did: its versions, then one line of JSON a call.

Standard library only, because it runs in the environments of the clients.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata

BASE_URL = os.environ["SERVICE_BASE_URL"]
MODEL = os.environ["SERVICE_MODEL"]
TOKENIZER = os.environ["SERVICE_TOKENIZER"]
"""The folder of the model's tokenizer."""

REFERENCE = json.loads(os.environ["SERVICE_REFERENCE"])
"""What transformers computes; see `reference.py`."""

STORY = "Tell me a story."

Call = Callable[[], object]


@contextmanager
def raises(kind: type[Exception], says: str, *, param: str | None = None) -> Iterator[None]:
    """The block raises an error of the client, whose text or code says so, and which names this parameter."""
    try:
        yield
    except kind as error:
        if param is not None and error.param != param:
            raise
        if says not in f"{getattr(error, 'code', '')} {error}":
            raise
    else:
        raise AssertionError(f"nothing said {says!r}")


class Calls:
    """The ordinary calls of one client, in order."""

    def __init__(self, *distributions: str) -> None:
        self._versions = {name: metadata.version(name) for name in distributions}
        self._calls: list[tuple[dict[str, str], Call]] = []

    def works(self, name: str) -> Callable[[Call], Call]:
        """The call returns what the script asserts."""
        return self._take({"call": name})

    def refused(self, name: str, *, says: str, instead: str) -> Callable[[Call], Call]:
        """The call raises, and its error says so; `instead` is what to use in its place."""
        return self._take({"call": name, "says": says, "instead": instead})

    def tell(self) -> None:
        """Make every call and print what came of it; exits with 1 if one was not as it should be."""
        print(json.dumps({"versions": self._versions}))
        problems = [self._made(told, call) for told, call in self._calls]
        sys.exit(any(problems))

    def _take(self, told: dict[str, str]) -> Callable[[Call], Call]:
        def take(call: Call) -> Call:
            self._calls.append((told, call))
            return call

        return take

    def _made(self, told: dict[str, str], call: Call) -> str | None:
        problem = None
        try:
            call()
            if "says" in told:
                problem = "it was not refused"
        except Exception as error:
            if "says" not in told:
                problem = traceback.format_exc()
            elif told["says"] not in str(error):
                problem = f"it was refused otherwise: {error}"
        print(json.dumps({**told, "problem": problem}), flush=True)
        return problem
