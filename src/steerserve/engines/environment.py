"""The environment of engines and of the placer: a list of the variables that they get. All others stay behind, because
any of them may be a secret, such as the key of an endpoint of LABEL_ENDPOINTS."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TEMP TMP VIRTUAL_ENV "
    "LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH CC CXX GLIBC_TUNABLES "
    "STEERSERVE_HOME HF_HOME HF_MODULES_CACHE HF_HUB_CACHE HF_HUB_OFFLINE".split()
)
_FAMILIES = re.compile(
    "(LC|XDG|PYTHON|CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|HIP|ROCR|ROCM|HSA|MIOPEN|OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|ATEN|"
    "TORCH|TORCHINDUCTOR|PYTORCH|TRITON|TRANSFORMERS|TOKENIZERS|SAFETENSORS|BNB|MALLOC|COVERAGE)(_|[A-Z]).*"
)
"""Variables of the libraries that an engine uses."""
_SECRET = re.compile(r"TOKEN(?!IZERS)|KEY|SECRET|PASSW|CREDENTIAL")
"""Words of names that no engine gets, whatever their family is."""


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an engine gets."""
    return {name: value for name, value in environ.items() if _is_passed(name)}


def _is_passed(name: str) -> bool:
    if _SECRET.search(name.upper()):
        return False
    return name in _NAMES or _FAMILIES.fullmatch(name) is not None
