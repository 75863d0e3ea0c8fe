"""Forward functions that call fewer operators than the library's, for modules of known architectures on a processor.

A decode step of one row calls hundreds of operators on a few hundred numbers each, and such a call takes longer than
its work. The functions here compute what the library's do, up to rounding, with fewer calls. A module keeps its place,
its parameters and its hooks. Every pass uses the same functions, so a row's bits do not depend on its neighbours.

A module gets another function only where a comparison on the values that the module gets in natural text finds that the
function is as near to float32 as the library's code (`comparing.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from steerserve.rules.inference.stepping import CompiledFunctions
from steerserve.rules.models.nearness import Functions
from steerserve.worker.model import comparing, native, operands, whole_layers
from steerserve.worker.model.coded import CodedWeight
from steerserve.worker.model.comparing import OTHER_FORM, Comparison, give
from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.packing import PanelWeight, native_weights, together

_ATTENTIONS = frozenset(
    {
        "Gemma2Attention",
        "Gemma3Attention",
        "LlamaAttention",
        "MistralAttention",
        "MixtralAttention",
        "Qwen2Attention",
        "Qwen2MoeAttention",
        "Qwen3Attention",
        "Qwen3MoeAttention",
    }
)
"""Attention of queries and keys that are rotated as a whole, and perhaps normalised by head before. Their scores may
have a soft cap."""

_MLPS = frozenset({"Gemma2MLP", "Gemma3MLP", "LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"})
"""MLPs whose hidden numbers are multiplied by those of a gate."""

_NORM = "RMSNorm"
_SHIFTS = (0.0, 1.0)
"""What norms add to their weights."""
_TOKENS = 3
_EXACT = 1e-5
"""The most by which an activation may differ in float32. GELU without a tanh differs by 5e-4."""
_OFF = 2**-6
"""By how much the values of a norm may be off those that tell what it adds to its weights."""


class _Norm(Protocol):
    """What a norm has that is given `_normalise`."""

    weight: Tensor
    shift: float
    constant: float
    least: Tensor
    kernels: native.Kernels | None


@dataclass(slots=True, eq=False)
class _Angles:
    """What `_rotated` reads in the pass that runs: the cosines and the signed sines, made of
    `embeddings`."""

    signs: Tensor
    embeddings: object = None
    made: tuple[Tensor, ...] = ()

    def cosines_and_sines(self, embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """The cosines and the sines [rows or 1, T, 1, 2, half] of a pass."""
        if self.embeddings is not embeddings:
            cosines, sines = (t.view(*t.shape[:2], 1, 2, -1) for t in embeddings)
            self.embeddings, self.made = embeddings, (cosines, sines * self.signs)
        return self.made


class _Attention(Protocol):
    """What an attention has that is given `_attend`. One with `q_norm` has `k_norm` too."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    q_norm: nn.Module
    k_norm: nn.Module
    config: PreTrainedConfig
    layer_idx: int
    head_dim: int
    num_key_value_groups: int
    scaling: float
    angles: _Angles
    kernels: native.Kernels | None


def shorten(
    model: nn.Module,
    dtype: torch.dtype,
    read: Callable[[], object],
    known: Functions | None = None,
) -> Functions:
    """Give the modules of a loaded model their shorter functions. `read` runs a pass of the model over natural text:
    each module is compared on the values that it gets there. With `known`, what an earlier load found is repeated."""
    angles = _Angles(torch.tensor([[-1.0], [1.0]], dtype=dtype))
    kernels = native.kernels()
    comparison = Comparison(dtype)
    module: Any
    for name, module in list(model.named_modules()):
        kind: type[nn.Module] = type(module)
        if any(p.device.type != "cpu" for p in module.parameters()) or "forward" in vars(module):
            continue
        if kind.__name__.endswith(_NORM) and _read_norm(module):
            module.kernels = kernels if kernels and kernels.may_normalise(module.weight) else None
            comparison.add(name, module, _normalise)
        elif kind.__name__ in _ATTENTIONS:
            module.angles = angles
            module.kernels = (
                kernels if kernels and kernels.may_attend(dtype, module.head_dim) else None
            )
            comparison.add(name, module, _attend)
        elif kind.__name__ in _MLPS and kernels and _may_gate(module, kernels, dtype):
            module.kernels, module.own = kernels, kind.forward
            module.activation = _activation(module.act_fn)
            comparison.add(name, module, _gated)
        elif kind is nn.ModuleList:
            module.__class__ = _Stack
    functions = comparison.run(read) if known is None else comparison.repeat(known)
    functions.layers = _take_layers(model, dtype)
    return functions


@contextmanager
def with_refused(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """While open, the model runs all its shorter functions, those that are too far from float32 too."""
    with comparing.with_refused(model):
        _take_layers(model, dtype)
        yield


def compiled(model: nn.Module, functions: Functions) -> CompiledFunctions | None:
    """Whether a loaded model, whose modules were given these functions, uses compiled ones; None for a model that is
    not on the processor."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return None
    given = functions.modules, functions.layers, functions.refused, functions.times
    kernels, why = native.found()
    if kernels is None:
        return CompiledFunctions(False, why, *given)
    panels = any(isinstance(w, PanelWeight | CodedWeight) for w in native_weights(model))
    if panels or any(getattr(module, "kernels", None) for module in model.modules()):
        return CompiledFunctions(True, why, *given)
    return CompiledFunctions(False, "there are none for the layers of this model", *given)


def attends(model: nn.Module, layers: int) -> bool:
    """Whether the attention of all layers is a compiled function, whose bits do not depend on the width of a pass."""
    compiled = [
        module
        for module in model.modules()
        if type(module).forward is _attend and getattr(module, "kernels", None)
    ]
    return len(compiled) == layers


def _take_layers(model: nn.Module, dtype: torch.dtype) -> int:
    """Have decoder layers run their decode passes in one compiled call; returns how many got it now. The modules inside
    them have their functions already."""
    kernels = native.kernels()
    if kernels is None:
        return 0
    own = [
        module
        for module in model.modules()
        if "forward" not in vars(module) and type(module).forward is not whole_layers.forward
    ]
    return sum(_take_layer(module, kernels, dtype) for module in own)


def _take_layer(module: Any, kernels: native.Kernels, dtype: torch.dtype) -> bool:
    """Have a decoder layer run its decode passes in one compiled call, where the values are those of its modules, bit
    for bit."""
    try:
        whole = whole_layers.whole(module, kernels)
        if whole is None:
            return False
        module.whole, module.kernels = whole, kernels
        rows = _rows(_TOKENS * whole.width, dtype).view(_TOKENS, 1, whole.width)
        tried = whole_layers.tried(
            whole, rows, [t.transpose(0, 1) for t in _angles(whole.dim, dtype)]
        )
        with torch.inference_mode():
            own = whole.own(module, **next(tried))
            found = [whole_layers.forward(module, **next(tried))]
            with whole_layers.cut_everywhere(whole):
                found.append(whole_layers.forward(module, **next(tried)))
    except OTHER_FORM:
        vars(module).pop("whole", None)
        return False
    if not all(torch.equal(own, one) for one in found):
        del module.whole
        return False
    give(module, whole_layers.forward)
    return True


class _Stack(nn.ModuleList):
    """The library asks for all its layers as a part of their list in each pass, and the list makes a new list of them
    then. This one gives itself."""

    def __getitem__(self, at: Any) -> Any:
        is_all = isinstance(at, slice) and at.indices(len(self)) == (0, len(self), 1)
        return self if is_all else super().__getitem__(at)


# ---------------------------------------------------------------- norms


def _normalise(self: _Norm, hidden_states: Tensor) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) of [..., width], computed in float32 and rounded once."""
    if self.kernels is not None and hidden_states.dtype == self.weight.dtype:
        return self.kernels.normalise(hidden_states, self.weight, self.constant, self.shift)
    wide = hidden_states.to(torch.float32, copy=True)
    width = hidden_states.shape[-1]
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).div_(math.sqrt(width))
    root = torch.hypot(length, self.least)
    factors = self.weight.float() + self.shift if self.shift else self.weight
    return wide.mul_(factors).div_(root).to(hidden_states.dtype)


def _read_norm(module: Any) -> bool:
    """Give a norm what `_normalise` reads; False for a norm of another form. What it makes of rows in float32 tells
    whether it multiplies by its weight or by 1 more than its weight."""
    weight = getattr(module, "weight", None)
    constant = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, nn.Parameter) or not isinstance(constant, float):
        return False
    rows = _rows(_TOKENS * weight.numel(), torch.float32).view(_TOKENS, -1)
    plain = rows / (rows.square().mean(-1, keepdim=True) + constant).sqrt()
    try:
        with torch.inference_mode():
            found = type(module).forward(module, rows).float()
            shifts = [
                s for s in _SHIFTS if torch.allclose(found, plain * (weight.float() + s), _OFF, 0.0)
            ]
    except OTHER_FORM:
        return False
    if not shifts:
        return False
    module.shift, module.constant = shifts[0], constant
    module.least = torch.tensor(math.sqrt(constant))
    return True


# ---------------------------------------------------------------- MLPs


class _Mlp(Protocol):
    """What an MLP has that is given `_gated`. `own` is the library's function."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear
    act_fn: nn.Module
    activation: native.Activation
    kernels: native.Kernels | None
    own: Callable[..., Tensor]


def _gated(self: _Mlp, x: Tensor) -> Tensor:
    """The gated MLP of a layer (Shazeer 2020, arXiv:2002.05202) over [..., hidden]."""
    if self.kernels is None or self.act_fn._forward_hooks or self.act_fn._forward_pre_hooks:
        return self.own(self, x)
    layers = self.gate_proj, self.up_proj
    joined = together(layers, x)
    gates, others = (layer(x) for layer in layers) if joined is None else joined.chunk(2, -1)
    return cast(Tensor, self.down_proj(self.kernels.gate(gates, others, self.activation)))


def _may_gate(module: Any, kernels: native.Kernels, dtype: torch.dtype) -> bool:
    width = getattr(getattr(module, "gate_proj", None), "out_features", 0)
    may = bool(width) and kernels.may_gate(dtype, width)
    return may and _activation(getattr(module, "act_fn", None)) is not None


def _activation(function: Any) -> native.Activation | None:
    """The compiled activation that gives the values of this one."""
    points = torch.linspace(-8.0, 8.0, 65)
    own = {
        native.Activation.SILU: functional.silu(points),
        native.Activation.GELU: functional.gelu(points, approximate="tanh"),
    }
    try:
        found = function(points)
        return next((kind for kind in own if torch.allclose(found, own[kind], 0.0, _EXACT)), None)
    except OTHER_FORM:
        return None


# ---------------------------------------------------------------- attention

_HeadNorms = tuple[native.Norm, native.Norm]
"""The norms of the heads of queries and of keys."""

_NO_NORMS: _HeadNorms = native.Norm(), native.Norm()


def _attend(
    self: _Attention,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Cache | KvCache | None = None,
    **kwargs: object,
) -> tuple[Tensor, object]:
    """Attention of a layer over [rows, T, hidden]."""
    rows, tokens = hidden_states.shape[:2]
    kernels = self.kernels
    if kernels is not None and isinstance(past_key_values, KvCache):
        parted = past_key_values.attention
        if parted is not None and (parted.is_plain or parted.is_plain_prompt):
            attended = _prompted if parted.is_plain_prompt else _decoded
            out = attended(self, kernels, hidden_states, position_embeddings, past_key_values)
            return self.o_proj(out), None
    query, key, value = _projected(self, hidden_states, position_embeddings)
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    eager = sys.modules[type(self).__module__].eager_attention_forward
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
    cap = whole_layers.cap(self)
    out, weights = attend(
        self,
        query,
        key,
        value,
        attention_mask,
        dropout=0.0,
        scaling=self.scaling,
        sliding_window=getattr(self, "sliding_window", None),
        **({"softcap": cap} if cap else {}),
        **kwargs,
    )
    return self.o_proj(out.reshape(rows, tokens, -1)), weights


def _projected(
    self: _Attention, hidden: Tensor, embeddings: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The rotated queries and keys, and the values, [rows, heads, T, dim] each."""
    layers = self.q_proj, self.k_proj, self.v_proj
    shape = *hidden.shape[:2], -1, self.head_dim
    cosines, sines = self.angles.cosines_and_sines(embeddings)
    has_norms = hasattr(self, "q_norm")
    joined = None if has_norms else together(layers, hidden)
    if joined is None:
        query, key, value = (layer(hidden).view(shape) for layer in layers)
        if has_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = _rotated(query, cosines, sines), _rotated(key, cosines, sines)
    else:
        heads = joined.view(shape)
        groups = self.num_key_value_groups
        count = heads.shape[2] // (groups + 2)
        turned = _rotated(heads[:, :, :-count], cosines, sines)
        query, key, value = turned[:, :, :-count], turned[:, :, -count:], heads[:, :, -count:]
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def _decoded(
    self: _Attention,
    kernels: native.Kernels,
    hidden: Tensor,
    embeddings: tuple[Tensor, Tensor],
    cache: KvCache,
) -> Tensor:
    """Attention [rows, 1, heads * dim] of a decode pass, before its last projection. Rows without room in the cache,
    which follow the others, get zeros."""
    query, key, value, cosines, sines, norms = _heads(self, hidden, embeddings)
    rows, heads, _, dim = query.shape
    shared = key.shape[1]
    last = cache.parts[-1].last
    out = torch.empty(rows, 1, heads * dim, dtype=query.dtype)
    turned = _room_for_queries(self, rows, 1, heads, dim)
    if last < rows:
        out[last:].zero_()
    size = query.element_size()
    for part, window, held_keys, held_values in cache.held(self.layer_idx, key, value):
        first = part.first
        angles_step = dim if cosines.shape[0] > 1 else 0
        kernels.attend(
            query.dtype,
            native.Heads(
                *(t.data_ptr() + first * t.stride(0) * size for t in (query, key, value)),
                *(t.data_ptr() + first * angles_step * size for t in (cosines, sines)),
                *(t.stride(0) for t in (query, key, value)),
                angles_step,
                *(t.data_ptr() for t in (held_keys, held_values, part.places, part.positions)),
                out.data_ptr() + first * heads * dim * size,
                part.last - first,
                heads,
                shared,
                dim,
                part.shelf.capacity,
                window,
                self.scaling,
                whole_layers.cap(self),
                *norms,
                None if turned is None else turned[first].data_ptr(),
            ),
        )
    _tell_queries(self, turned)
    return out


def _prompted(
    self: _Attention,
    kernels: native.Kernels,
    hidden: Tensor,
    embeddings: tuple[Tensor, Tensor],
    cache: KvCache,
) -> Tensor:
    """Attention [rows, T, heads * dim] of a prefill pass, before its last projection. Padding gets zeros."""
    rows, tokens = hidden.shape[:2]
    query, key, value, cosines, sines, norms = _heads(self, hidden, embeddings)
    _, heads, _, dim = query.shape
    shared = key.shape[1]
    held_keys, held_values, starts, sizes = cache.rooms(self.layer_idx, key, value)
    is_full = all(size == tokens for size in sizes)
    out = (torch.empty if is_full else torch.zeros)(rows, tokens, heads * dim, dtype=query.dtype)
    turned = _room_for_queries(self, rows, tokens, heads, dim)
    places = torch.tensor(
        [
            [held.data_ptr() for held in held_keys],
            [held.data_ptr() for held in held_values],
            [held.shape[1] for held in held_keys],
            list(starts),
            list(sizes),
        ]
    )
    kernels.attend_prompts(
        query.dtype,
        native.Prompts(
            *(t.data_ptr() for t in (query, key, value, cosines, sines)),
            *(t.stride(0) for t in (query, key, value)),
            tokens * dim if cosines.shape[0] > 1 else 0,
            *(row.data_ptr() for row in places),
            out.data_ptr(),
            rows,
            tokens,
            heads,
            shared,
            dim,
            cache.window(self.layer_idx),
            self.scaling,
            whole_layers.cap(self),
            *norms,
            None if turned is None else turned.data_ptr(),
        ),
    )
    _tell_queries(self, turned)
    return out


def _room_for_queries(
    self: _Attention, rows: int, tokens: int, heads: int, dim: int
) -> Tensor | None:
    """Room for the rotated queries, which a compiled attention multiplies in float32; None where nobody notes them."""
    is_noted = operands.is_noted(cast(nn.Module, self))
    return torch.zeros(rows, tokens, heads, dim) if is_noted else None


def _tell_queries(self: _Attention, turned: Tensor | None) -> None:
    if turned is not None:
        operands.tell_query(cast(nn.Module, self), turned.transpose(1, 2))


def _heads(
    self: _Attention, hidden: Tensor, embeddings: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, _HeadNorms]:
    """What a compiled attention reads of [rows, T, hidden]: the queries, keys and values before their rotation
    [rows * T, heads, 1, dim], where the heads of a token lie one behind the other, the cosines and sines, and the norms
    of queries and keys that it computes itself."""
    dim, count = self.head_dim, hidden.shape[0] * hidden.shape[1]
    layers = self.q_proj, self.k_proj, self.v_proj
    cosines, sines = (angles.to(hidden.dtype).contiguous() for angles in embeddings)
    joined = together(layers, hidden)
    if joined is None:
        query, key, value = (
            layer(hidden).reshape(count, -1, 1, dim).contiguous() for layer in layers
        )
    else:
        sizes = [layer.out_features // dim for layer in layers]
        query, key, value = joined.view(count, -1, 1, dim).split_with_sizes(sizes, 1)
    norms = _head_norms(self, hidden.dtype)
    if norms is None:
        shape = *hidden.shape[:2], -1, dim
        query, key = self.q_norm(query.view(shape)), self.k_norm(key.view(shape))
        query, key = (t.reshape(count, -1, 1, dim).contiguous() for t in (query, key))
        norms = _NO_NORMS
    return query, key, value, cosines, sines, norms


def _head_norms(self: _Attention, dtype: torch.dtype) -> _HeadNorms | None:
    """The norms of queries and keys that a compiled attention computes, with the bits of the modules; None where the
    modules must compute them, because they have other functions or hooks."""
    if not hasattr(self, "q_norm"):
        return _NO_NORMS
    norms: tuple[Any, Any] = self.q_norm, self.k_norm
    for norm in norms:
        if type(norm).forward is not _normalise or norm.kernels is None:
            return None
        if norm.weight.dtype != dtype or norm._forward_hooks or norm._forward_pre_hooks:
            return None
    return native.Norm.from_module(norms[0]), native.Norm.from_module(norms[1])


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys [rows, T, heads, dim], turned by the angles of their positions (Su et al. 2021,
    arXiv:2104.09864): each number with the one half a head further on."""
    halves = heads.view(*heads.shape[:3], 2, -1)
    turned = torch.addcmul(halves * cosines, halves.flip(-2), sines)
    return turned.view(heads.shape)


def _angles(dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Cosines and sines [1, T, dim] of positions."""
    angles = _rows(_TOKENS * dim // 2, torch.float32).view(1, _TOKENS, -1).repeat(1, 1, 2)
    return [angles.cos().to(dtype), angles.sin().to(dtype)]


def _rows(count: int, dtype: torch.dtype) -> Tensor:
    """Numbers that are compared, the same at every load."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(count, generator=source).to(dtype)
