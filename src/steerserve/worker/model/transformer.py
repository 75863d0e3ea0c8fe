"""A transformers checkpoint opened from its folder: configuration, tokenizer and weights on their device."""

from __future__ import annotations

import math
import platform
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from steerserve.errors import Refusal
from steerserve.messages import LOADING_TOKENIZER, LOADING_WEIGHTS
from steerserve.rules.models import known_faults
from steerserve.rules.text_offsets import BROKEN
from steerserve.worker import memory
from steerserve.worker.heartbeat import Pulse
from steerserve.worker.model import (
    coded,
    comparing,
    forwards,
    kept_checks,
    packing,
    placement,
    plain,
    precision,
    truth,
)

SHOWN = 4
"""The most names of tensors in one refusal."""

PREPARATION_BYTES = 3 << 30
"""The most memory that reading the configuration and the tokenizer may take."""

_SCALES_DEPTH = 3
"""How deep the scales of a quantized parameter may lie within its fields."""

CONTEXT_TOKENS = 5
"""The tokens of a prompt that are decoded with its answer: the text of a token depends on the text before it."""

MODULE_TOKENS = 64
"""The tokens of natural text over which the functions of modules are compared."""

LIBRARIES = {"torch": torch.__version__, "transformers": transformers.__version__}
"""The versions of the libraries that compute."""

WEIGHTS = ("*.safetensors", "*.bin")
LINE_CHARACTERS = 200
_PATH = re.compile(r"(?:/[^/\s'\"]+)+/")
_LAYER = re.compile(r"(.*?)\.(\d+)\.")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")

Report = Callable[[str, float], None]


class LoadOptions(TypedDict):
    """How a checkpoint is loaded. `devices`: none for the usual device, one for the whole model, or the device of each
    decoder layer. `report` is told each stage, and its part of the load in per cent."""

    quantization: str
    trust_remote_code: bool
    report: Report
    devices: NotRequired[Sequence[str]]


class Transformer:
    """The common part of a language model and an encoder. `kind` is the library's automatic class that loads the
    weights. `output_vocabulary` is the width of the logits, 0 for a model without an output embedding. Passes give
    their heartbeats through `pulse`.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION; MODEL_LOAD_FAILED for a split of a model without a list of layers.
    """

    def __init__(
        self,
        path: Path,
        kind: type[_BaseAutoModelClass],
        *,
        quantization: str,
        trust_remote_code: bool,
        report: Report,
        devices: Sequence[str] = (),
    ) -> None:
        config = configuration(path, trust_remote_code)
        common: dict[str, object] = {
            "trust_remote_code": trust_remote_code,
            "local_files_only": True,
        }
        self.pulse = Pulse()
        self.config = config
        used = [torch.device(name) for name in devices] or [memory.device()]
        self.device = used[0]
        if self.device.type == "cuda":
            # calls that act on the current card would open a context on the first card, which may hold no model
            torch.cuda.set_device(self.device)
            # cuDNN plans attention anew for each shape, and starting it takes longer than the kernel itself
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.held = precision.held(quantization, config, used)
        with memory.bounded("reading the configuration and the tokenizer", PREPARATION_BYTES):
            _check_size(path, kind, config, trust_remote_code)
            where = placement.device_map(kind, config, devices, self.device, trust_remote_code)
            report(LOADING_TOKENIZER, 5.0)
            self.tokenizer: PreTrainedTokenizerBase = open_tokenizer(path, trust_remote_code)
            self.text_tokens = self.encode(truth.TEXT, special=True)
        report(LOADING_WEIGHTS, 10.0)
        options = precision.load_options(
            self.held, kind, config, trust_remote_code=trust_remote_code
        )
        loaded = _read(path, kind, dtype=self.held.dtype, device_map=where, **options, **common)
        self.model: PreTrainedModel = loaded[0]
        _check_whole(loaded[1])
        self.warnings = [
            *_unread_layers(loaded[1], list(self.model.state_dict())),
            *known_faults.warnings_for_model(LIBRARIES, self._facts(used)),
        ]
        """What is remarkable about the checkpoint, for its record."""
        self.input_vocabulary = int(self.model.get_input_embeddings().weight.shape[0])
        report("moving_to_device", 80.0)
        self.model.eval().requires_grad_(False)
        self.parameters = int(self.model.num_parameters())
        head = self.model.get_output_embeddings()
        self.output_vocabulary = int(head.weight.shape[0]) if head is not None else 0
        self.dtype: torch.dtype = getattr(torch, self.held.dtype)
        packed = self._pack()
        if packed or self.held.quantizes:
            precision.let_go_of_files(self.model)
        self.rounds_rows = coded.rounds_rows(self.model)
        self.path = path
        self.checks_key = kept_checks.key(path, quantization, devices, packed)
        self.checked = kept_checks.read(self.checks_key)
        known = self.checked.functions if self.checked is not None else None
        self.functions = forwards.shorten(self.model, self.dtype, self._read_text, known)

    def _read_text(self) -> None:
        """Run a plain pass over natural text; an architecture that takes no plain tokens has none."""
        tokens = truth.natural_tokens(self.text_tokens, self.input_vocabulary)
        most = truth.positions(self.parameters, is_on_host=self.device.type == "cpu")
        ids = torch.tensor([tokens[: min(most, MODULE_TOKENS)]], device=self.device)
        try:
            self.model(**plain.whole(self.model, ids))
        except (*comparing.OTHER_FORM, LookupError) as error:
            if memory.is_exhausted(error):
                raise

    def _facts(self, devices: Sequence[torch.device]) -> known_faults.Facts:
        """What known faults of the libraries depend on."""
        text = self.config.get_text_config()
        tokenizer = type(self.tokenizer).__name__
        if _is_byte_level(self.tokenizer):
            tokenizer += " byte-level"
        return {
            "model_type": {self.config.model_type, text.model_type},
            "dtype": {self.held.dtype},
            "rope": known_faults.rope_facts(text.to_dict()),
            "tokenizer": {tokenizer},
            "device": {device.type for device in devices},
            "machine": {platform.machine()},
        }

    def _pack(self) -> int:
        """Lay the weights on the host out for its kernels; return how many layers were packed."""

        def free() -> int:
            return memory.free(torch.device("cpu"))

        packed = packing.pack_codes(self.model, self.dtype)
        if packed:
            packed += packing.pack_head(self.model, self.dtype, free)
        return packed + packing.pack(self.model, free)

    @property
    def devices(self) -> list[torch.device]:
        """The devices of the model's tensors. The first is the device on which a pass begins."""
        return list(dict.fromkeys([self.device, *(p.device for p in self.model.parameters())]))

    @cached_property
    def weights(self) -> dict[torch.device, int]:
        """By device, the bytes of the parameters and buffers as they are held, with the scales of quantized
        parameters. Measured once, because they stay as they are."""
        return memory.bytes_by_device(self._held())

    def _held(self) -> Iterator[memory.Held]:
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            yield tensor
            yield from memory.tensors_in(vars(tensor), _SCALES_DEPTH)
        yield from packing.native_weights(self.model)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text of the service itself. Texts of clients are tokenized in a process of their own."""
        return encode(self.tokenizer, text, special=special)


def open_tokenizer(path: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(
        path, trust_remote_code=trust_remote_code, local_files_only=True
    )


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether its tokens are written as GPT-2 writes bytes: a space as Ġ and a line end as Ċ, where SentencePiece
    writes a space as ▁."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    spaces = [backend.token_to_id(token) is not None for token in ("Ġ", "Ċ", "▁")]
    return spaces == [True, True, False]


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, skip_special: bool) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    read = tokenizer.decode if backend is None else backend.decode
    return str(read(list(ids), skip_special_tokens=skip_special))


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """The text of a token inside a text, even of a special token; empty for an id that the tokenizer does not know.

    The token is decoded after itself, because some tokenizers leave out the blank with which the tokens that they
    decode begin.
    """
    alone = decode(tokenizer, [token], skip_special=False)
    if BROKEN in alone:
        return alone  # two of them may be a character
    return decode(tokenizer, [token, token], skip_special=False)[len(alone) :]


def special_tokens(tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]) -> frozenset[int]:
    """The tokens that are not text, with `ends` among them. SAEs are not trained on the values of such tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    named = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return frozenset(
        [
            *ends,
            *tokenizer.all_special_ids,
            *(token for token in named if token is not None),
            *(token for token, entry in added.items() if entry.special),
        ]
    )


def _check_size(
    path: Path, kind: type[_BaseAutoModelClass], config: PreTrainedConfig, trust_remote_code: bool
) -> None:
    """Check that the weight files can hold the parameters of the configuration, because the library makes memory for
    all parameters. A parameter takes at least 8 bits of a file, and 1 bit if it is quantized.

    Raises:
        Refusal: MODEL_LOAD_FAILED.
    """
    stored = sum(file.stat().st_size for pattern in WEIGHTS for file in path.glob(pattern))
    with torch.device("meta"):
        empty: nn.Module = kind.from_config(config, trust_remote_code=trust_remote_code)
    parameters = sum(parameter.numel() for parameter in empty.parameters())
    per_byte = 8 if getattr(config, "quantization_config", None) else 1
    if parameters > stored * per_byte:
        raise Refusal(
            "MODEL_LOAD_FAILED",
            f"the configuration describes {parameters} parameters; the weights have {stored} bytes",
        )


def _check_whole(loading_info: dict[str, Any]) -> None:
    """Check that the checkpoint has every tensor of its architecture, because the library fills missing tensors with
    random numbers.

    The pooler of an encoder may be missing, because it is not used here and many checkpoints leave it out.

    Raises:
        Refusal: MODEL_LOAD_FAILED.
    """
    missing = sorted(n for n in loading_info.get("missing_keys", ()) if "pooler." not in n)
    odd = [
        f"{name} {list(stored)}, not {list(wanted)}"
        for name, stored, wanted in sorted(loading_info["mismatched_keys"])
    ]
    for why, names in (("does not have", missing), ("has in another shape", odd)):
        if names:
            shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            raise Refusal(
                "MODEL_LOAD_FAILED",
                f"the checkpoint {why} {len(names)} of the tensors that its configuration asks for: {shown}",
            )


def _read(
    path: Path, kind: type[_BaseAutoModelClass], *, dtype: str, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """The model with its weights, and what the library tells about its loading.

    Raises:
        Refusal: MODEL_LOAD_FAILED naming a tensor that cannot be converted.
    """
    try:
        loaded: tuple[Any, dict[str, Any]] = kind.from_pretrained(
            path,
            output_loading_info=True,
            dtype=getattr(torch, dtype),
            # the library's own refusal of tensors in another shape names none of them
            ignore_mismatched_sizes=True,
            **options,
        )
    except RuntimeError as error:
        _check_converted(error)
        raise
    return loaded


def _check_converted(error: RuntimeError) -> None:
    """The library's error about tensors that it cannot convert says only that its log has them, so they are read where
    the library keeps them.

    Raises:
        Refusal: MODEL_LOAD_FAILED naming the first of these tensors with the reason.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        told = getattr(frame.f_locals.get("loading_info"), "conversion_errors", None)
        if told:
            name, text = min(told.items())
            reason = str(text).rpartition("\nError")[0] or str(text)
            why = f"the checkpoint's weights for {name} cannot be put together: {reason.splitlines()[-1]}"
            raise Refusal("MODEL_LOAD_FAILED", why) from error


def _unread_layers(loading_info: dict[str, Any], own: Sequence[str]) -> list[str]:
    """A warning where the weights have more layers than the model, whose tensors are named `own`. The library leaves
    them out silently. Layers of other modules, such as those of an image encoder, do not count."""
    last: dict[str, int] = {}
    for name in own:
        if found := _LAYER.match(name):
            last[found[1]] = max(last.get(found[1], 0), int(found[2]))
    matches = map(_LAYER.match, loading_info.get("unexpected_keys", ()))
    beyond = [
        (int(m[2]), last[m[1]]) for m in matches if m and int(m[2]) > last.get(m[1], math.inf)
    ]
    if not beyond:
        return []
    most, used = max(beyond)
    return [
        f"the weights have layers up to {most}, and config.json names {used + 1} layers: the others are not used"
    ]


def configuration(path: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration of a folder."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        path, trust_remote_code=trust_remote_code, local_files_only=True
    )
    return config


def first_line(error: Exception) -> str:
    """An error of the library in one short line, without the paths and addresses of this machine. A line that ends with
    a colon goes on with the next one, which says the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    line = _ADDRESS.sub("...", _PATH.sub("", line))
    return line[:LINE_CHARACTERS] or type(error).__name__


def described_error(error: Exception) -> str:
    """The first line of an error behind the name of its type."""
    line, kind = first_line(error), type(error).__name__
    return kind if line == kind else f"{kind}: {line}"
