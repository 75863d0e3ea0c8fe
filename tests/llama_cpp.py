"""llama.cpp itself, with a control vector: the greedy continuation of a prompt, and the logits behind each token.

The wheel of xllamacpp has no control vectors in its Python interface, but its library exports llama.cpp's own
functions, which are called here: the reader of `--control-vector` files (`common_control_vector_load`) and the adapter
that adds them (`llama_set_adapter_cvec`). They run in a process of their own, because llama.cpp ends its process on a
failed assertion.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

_LOAD = "_Z26common_control_vector_loadRKSt6vectorI31common_control_vector_load_infoSaIS0_EE"
"""`common_control_vector_load(const std::vector<common_control_vector_load_info> &)`."""
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class ControlVector:
    """`--control-vector-scaled FILE:SCALE` with `--control-vector-layer-range FIRST LAST`."""

    file: str
    first: int
    last: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Continued:
    """The tokens of a greedy continuation, and the log-probabilities [tokens, vocabulary] that each was drawn from."""

    tokens: list[int]
    logprobs: np.ndarray


def library() -> Path | None:
    """The library of llama.cpp that exports these functions; None on a machine whose wheel has none."""
    package = importlib.util.find_spec("xllamacpp")
    if sys.platform != "linux" or package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("xllamacpp*.so"), None)


def continued(
    model: Path, prompt: Sequence[int], count: int, vectors: Sequence[ControlVector | None]
) -> list[Continued]:
    """What the model writes after the prompt, `count` tokens, with each control vector (None: with none)."""
    asked = {
        "model": str(model),
        "prompt": list(prompt),
        "count": count,
        "vectors": [None if one is None else asdict(one) for one in vectors],
    }
    made = subprocess.run(
        [sys.executable, "-m", "tests.llama_cpp"],
        input=json.dumps(asked).encode(),
        capture_output=True,
        timeout=_SECONDS,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
    )
    assert made.returncode == 0, made.stderr.decode()
    said = np.frombuffer(made.stdout, "<f4").reshape(len(vectors), count, -1)
    return [Continued([int(i) for i in one.argmax(-1)], _log_softmax(one)) for one in said]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    made: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return made


# ------------------------------------------------------------------ the process


class _Params(ctypes.Structure):
    """Room for any of llama.cpp's structs that are passed by value. Their fields are its own defaults, and no other
    argument follows them, so their true size does not matter."""

    _fields_ = (("room", ctypes.c_char * 2048),)


class _LoadInfo(ctypes.Structure):
    """A `common_control_vector_load_info`. Its `std::string` is a pointer to characters, because the wheels for Linux are
    built with the strings of libstdc++ before C++11."""

    _fields_ = (("strength", ctypes.c_float), ("file", ctypes.c_char_p))


class _StdVector(ctypes.Structure):
    """A `std::vector` of libstdc++."""

    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("room", ctypes.c_void_p),
    )


class _LoadedVector(ctypes.Structure):
    """A `common_control_vector_data`: the numbers of all layers from 1 on, one after the other."""

    _fields_ = (("width", ctypes.c_int), ("numbers", _StdVector))


class _Model:
    """A model file that llama.cpp has loaded."""

    def __init__(self, llama: ctypes.CDLL, path: str) -> None:
        for name, result in (
            ("llama_model_default_params", _Params),
            ("llama_context_default_params", _Params),
            ("llama_batch_get_one", _Params),
            ("llama_model_load_from_file", ctypes.c_void_p),
            ("llama_init_from_model", ctypes.c_void_p),
            ("llama_model_get_vocab", ctypes.c_void_p),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float)),
        ):
            getattr(llama, name).restype = result
        self._llama = llama
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        made = llama.llama_model_load_from_file(path.encode(), params)
        assert made, f"llama.cpp cannot load {path}"
        self._model = ctypes.c_void_p(made)
        vocabulary = ctypes.c_void_p(llama.llama_model_get_vocab(self._model))
        self._size = int(llama.llama_vocab_n_tokens(vocabulary))

    def logits(self, prompt: list[int], count: int, vector: dict[str, Any] | None) -> np.ndarray:
        """The logits [count, vocabulary], float32, of a greedy continuation."""
        llama = self._llama
        made = llama.llama_init_from_model(self._model, llama.llama_context_default_params())
        assert made, "llama.cpp cannot make a context"
        context = ctypes.c_void_p(made)
        llama.llama_set_n_threads(context, ctypes.c_int32(1), ctypes.c_int32(1))
        if vector is not None:
            self._steer(context, **vector)
        rows: list[np.ndarray] = []
        following = prompt
        for _ in range(count):
            tokens = (ctypes.c_int32 * len(following))(*following)
            batch = llama.llama_batch_get_one(tokens, ctypes.c_int32(len(following)))
            assert llama.llama_decode(context, batch) == 0
            logits = llama.llama_get_logits_ith(context, ctypes.c_int32(-1))
            rows.append(np.ctypeslib.as_array(logits, (self._size,)).astype("<f4"))
            following = [int(rows[-1].argmax())]
        llama.llama_free(context)
        return np.stack(rows)

    def _steer(
        self, context: ctypes.c_void_p, file: str, first: int, last: int, scale: float
    ) -> None:
        info = _LoadInfo(scale, file.encode())
        begin = ctypes.addressof(info)
        infos = _StdVector(begin, begin + ctypes.sizeof(info), begin + ctypes.sizeof(info))
        loaded = _LoadedVector()
        self._llama[_LOAD](ctypes.byref(loaded), ctypes.byref(infos))
        assert loaded.width > 0, f"llama.cpp cannot read {file}"
        numbers = loaded.numbers
        size = ctypes.c_size_t((numbers.end - numbers.begin) // ctypes.sizeof(ctypes.c_float))
        status = self._llama.llama_set_adapter_cvec(
            context,
            ctypes.c_void_p(numbers.begin),
            size,
            ctypes.c_int32(loaded.width),
            ctypes.c_int32(first),
            ctypes.c_int32(last),
        )
        assert status == 0, f"llama.cpp does not take {file}"


def main() -> None:
    """The process: a request as JSON on the standard input, logits as little-endian float32 on the standard output."""
    asked = json.load(sys.stdin)
    # llama.cpp writes what it does to both outputs
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    model = _Model(ctypes.CDLL(str(library())), asked["model"])
    for vector in asked["vectors"]:
        answers.write(model.logits(asked["prompt"], asked["count"], vector).tobytes())
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
