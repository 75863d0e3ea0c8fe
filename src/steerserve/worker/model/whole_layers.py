"""Decode passes of a decoder layer in one compiled call, for layers of the Llama form on a processor: norm, attention,
addition, norm, gated MLP, addition. Queries and keys may have norms of each head. In layers of the Gemma form,
attention and MLP have norms behind them too.

The call computes what the modules inside the layer compute, bit for bit. Where sites inside the layer are hooked, it is
cut there: the hooks get the value, and the next call goes on with what they made of it. Where something else is hooked,
the layer runs through its modules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steerserve.worker.model import native
from steerserve.worker.model.attention import FULL, SDPA, PartedAttention
from steerserve.worker.model.coded import CodedWeight
from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.native import Step
from steerserve.worker.model.packing import Joint, JointPart, PackedLinear, PanelWeight

_LAYERS = frozenset(
    {
        "Gemma2DecoderLayer",
        "Gemma3DecoderLayer",
        "LlamaDecoderLayer",
        "MistralDecoderLayer",
        "Qwen2DecoderLayer",
        "Qwen3DecoderLayer",
    }
)
_PLACES_OF_TWO = {
    "before_attention": "input_layernorm",
    "before_mlp": "post_attention_layernorm",
}
_PLACES = {
    "before_attention": "input_layernorm",
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
"""The norms of a layer of the Llama form, and of one of the Gemma form."""

_PRODUCTS = ("projected", "attended", "gated", "down")
_POSITION, _CAPACITY = 5, 8
"""Where the tokens are in the pass in which the two ways of a layer are compared, and the room of a row."""

_CUTS = {
    Step.HEADS: ("self_attn.o_proj", True),
    Step.ATTENDED: ("self_attn", False),
    Step.NORMED_ATTENTION: ("post_attention_layernorm", False),
    Step.MLP_INPUT: ("mlp", True),
    Step.NEURONS: ("mlp.down_proj", True),
    Step.MLP: ("mlp", False),
    Step.NORMED_MLP: ("post_feedforward_layernorm", False),
}
"""The steps after which the compiled call may be cut. Each step makes the input or the output of a module: the path of
the module, and whether it is the input."""

_NORMED = (Step.NORMED_ATTENTION, Step.NORMED_MLP)
"""The steps that only layers of the Gemma form have."""

Angles = Sequence[Tensor]
"""The cosines and the sines [rows or 1, 1, dim] of the positions of a pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A place in a layer, behind this step, where hooks of a module get its input or its output. A hook of an output
    gets no inputs, because the compiled call does not keep them. `hooks` has the hooks of the module that are called
    here, by their numbers."""

    step: Step
    module: nn.Module
    is_input: bool
    hooks: Mapping[int, Callable[..., Any]]

    @classmethod
    def at(cls, step: Step, module: nn.Module, *, is_input: bool) -> Cut:
        hooks = module._forward_pre_hooks if is_input else module._forward_hooks
        return cls(step, module, is_input, hooks)

    def hook(self, function: Callable[..., Any]) -> RemovableHandle:
        """Hook the module here."""
        if self.is_input:
            return self.module.register_forward_pre_hook(function)
        return self.module.register_forward_hook(function)

    def show(self, value: Tensor) -> Tensor:
        """What the hooks make of the value [rows, 1, width]."""
        return self._as_input(value) if self.is_input else self._as_output(value)

    def _as_input(self, value: Tensor) -> Tensor:
        module, args, kwargs = self.module, (value,), dict[str, Any]()
        for number, hook in list(self.hooks.items()):
            if number in module._forward_pre_hooks_with_kwargs:
                args, kwargs = hook(module, args, kwargs) or (args, kwargs)
            elif (found := hook(module, args)) is not None:
                args = found if isinstance(found, tuple) else (found,)
        return args[0]

    def _as_output(self, value: Tensor) -> Tensor:
        module = self.module
        output: Any = (value, None) if self.step == Step.ATTENDED else value
        for number, hook in list(self.hooks.items()):
            has_kwargs = number in module._forward_hooks_with_kwargs
            found = hook(module, (), {}, output) if has_kwargs else hook(module, (), output)
            output = output if found is None else found
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)


@dataclass(frozen=True, slots=True, eq=False)
class WholeLayer:
    """What the compiled call of a layer reads. `cuts` are the places where it may be cut, in their order, and `hooks`
    all other hooks of the modules inside the layer. `held` is what `struct` points to, `work` the multiplications for a
    row, `like` has the shape of the keys of one token [shared heads, 1, dim]."""

    own: Callable[..., Tensor]
    cuts: Sequence[Cut]
    hooks: Sequence[Mapping[int, object]]
    index: int
    struct: native.Layer
    held: Sequence[object]
    work: int
    like: Tensor

    @property
    def width(self) -> int:
        """The hidden size."""
        return int(self.struct.down.width)

    @property
    def dim(self) -> int:
        """The numbers of a head."""
        return int(self.struct.dim)

    def run(
        self,
        kernels: native.Kernels,
        hidden: Tensor,
        angles: Angles,
        cache: KvCache,
        cuts: Sequence[Cut] = (),
    ) -> Tensor:
        """The rows [rows, 1, hidden] of a decode pass after this layer, cut at these places.

        Raises:
            PassEnded: the pass must stop.
        """
        # layers with a window may have other angles than those without
        window = self.struct.window = cache.window(self.index)
        ready = cache.ready.get(window)
        if not isinstance(ready, _Ready) or ready.angles is not angles:
            ready = cache.ready[window] = _Ready(self, hidden, angles, cache)
        for place, (_, _, keys, values) in enumerate(cache.held(self.index, self.like, self.like)):
            part = ready.parts[place]
            part.keys, part.values = keys.data_ptr(), values.data_ptr()
        hidden = hidden.contiguous()
        out, first = torch.empty_like(hidden), 0

        def run(last: int) -> None:
            steps = range(first, last)
            kernels.run_layer(self.struct, ready.struct, hidden, out, steps, ready.threads)

        for cut in cuts:
            run(cut.step + 1)
            first = cut.step + 1
            value = ready.value(cut.step, out, self.struct.down.size)
            found = cut.show(value)
            if found is not value:
                value.copy_(found)
        run(Step.DONE)
        return out


class _Ready:
    """What all layers of one window read in one decode pass: the angles of its positions, where its rows lie in the
    cache, and room for what a layer computes."""

    def __init__(self, layer: WholeLayer, hidden: Tensor, angles: Angles, cache: KvCache) -> None:
        self.angles = angles
        count, width = hidden.shape[0], hidden.shape[-1]
        of = layer.struct
        self.parts = (native.Part * len(cache.parts))(
            *(
                native.Part(
                    None,
                    None,
                    part.places.data_ptr(),
                    part.positions.data_ptr(),
                    part.first,
                    part.last - part.first,
                    part.shelf.capacity,
                )
                for part in cache.parts
            )
        )
        attended = of.attended.size
        sizes = [max(of.projected.width, of.gated.width), width, width, attended]
        room = [hidden.new_empty(count, size) for size in sizes]
        room.append(torch.empty(count, max(width, attended, of.down.size)))
        cosines, sines = (t.to(hidden.dtype).contiguous() for t in angles)
        self._angles = cosines, sines
        self._views: dict[Step, Tensor] = {}
        self._products, self._middle, self._normalised, self._heads, self._wide = room
        self.struct = native.Pass(
            cosines.data_ptr(),
            sines.data_ptr(),
            ctypes.addressof(self.parts),
            *(t.data_ptr() for t in room),
            of.dim if cosines.shape[0] > 1 else 0,
            len(self.parts),
            count,
        )
        self.threads = native.threads(count * layer.work)

    def value(self, step: Step, out: Tensor, neurons: int) -> Tensor:
        """The result of a step [rows, 1, width]. The next step reads it from the same memory."""
        if step in (Step.MLP, Step.NORMED_MLP):
            return out
        if step not in self._views:
            self._views[step] = self._view(step, neurons)[:, None]
        return self._views[step]

    def _view(self, step: Step, neurons: int) -> Tensor:
        if step == Step.HEADS:
            return self._heads
        if step == Step.MLP_INPUT:
            return self._normalised
        if step == Step.NEURONS:
            count = len(self._products)
            return self._products.view(-1)[: count * 2 * neurons].view(count, -1)[:, :neurons]
        return self._middle


def forward(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: Angles | None = None,
    **kwargs: object,
) -> Tensor:
    """A decoder layer over [rows, T, hidden]."""
    whole: WholeLayer = self.whole
    kernels: native.Kernels | None = self.kernels
    if (
        kernels is not None
        and hidden_states.shape[1] == 1
        and position_embeddings is not None
        and isinstance(past_key_values, KvCache)
        and hidden_states.dtype == whole.like.dtype
        and not any(whole.hooks)
    ):
        parted = past_key_values.attention
        if parted is not None and parted.is_plain:
            cuts = [cut for cut in whole.cuts if cut.hooks]
            return whole.run(kernels, hidden_states, position_embeddings, past_key_values, cuts)
    return whole.own(
        self,
        hidden_states,
        attention_mask=attention_mask,
        position_ids=position_ids,
        past_key_values=past_key_values,
        use_cache=use_cache,
        position_embeddings=position_embeddings,
        **kwargs,
    )


def whole(layer: Any, kernels: native.Kernels) -> WholeLayer | None:
    """What the compiled call of this layer reads; None for a layer of another form. Its modules have their weights and
    their functions already."""
    if type(layer).__name__ not in _LAYERS:
        return None
    attention, mlp = layer.self_attn, layer.mlp
    norms = _norms(layer)
    first, gates = _joint(attention.q_proj, 3), _joint(mlp.gate_proj, 2)
    inside = attention, mlp, *norms.values()
    if any(getattr(module, "kernels", None) is None for module in inside):
        return None
    if first is None or gates is None:
        return None
    weights = [(first.weight, first.bias), _alone(attention.o_proj)]
    weights += [(gates.weight, gates.bias), _alone(mlp.down_proj)]
    dtype = norms["before_attention"].weight.dtype
    if not all(_is_compiled(weight, bias, dtype) for weight, bias in weights):
        return None
    is_gemma = _is_gemma(layer)
    cuts = [
        Cut.at(step, layer.get_submodule(name), is_input=is_input)
        for step, (name, is_input) in _CUTS.items()
        if is_gemma or step not in _NORMED
    ]
    at_cuts = {id(cut.hooks) for cut in cuts}
    inner = [module for module in layer.modules() if module is not layer]
    hooks = [held for one in inner for held in (one._forward_hooks, one._forward_pre_hooks)]
    dim, shared = attention.head_dim, attention.k_proj.out_features // attention.head_dim
    products = [_product(weight, bias) for weight, bias in weights]
    return WholeLayer(
        type(layer).forward,
        cuts,
        [held for held in hooks if id(held) not in at_cuts],
        attention.layer_idx,
        native.Layer(
            **{place: native.Norm.from_module(norm) for place, norm in norms.items()},
            **dict(zip(_PRODUCTS, products, strict=True)),
            heads=shared * attention.num_key_value_groups,
            shared=shared,
            dim=dim,
            scale=attention.scaling,
            cap=cap(attention),
            activation=mlp.activation,
        ),
        [*weights, *(norm.weight for norm in norms.values())],
        sum(of.size * of.width for of in products),
        torch.empty(shared, 1, dim, dtype=dtype),
    )


def is_whole(module: nn.Module) -> bool:
    """Whether a decoder layer runs its decode passes in one compiled call."""
    return isinstance(vars(module).get("whole"), WholeLayer)


def cap(attention: Any) -> float:
    """The soft cap of the scores of an attention (Gemma 2, arXiv:2408.00118); 0 where there is none."""
    return getattr(attention, "attn_logit_softcapping", None) or 0.0


def _norms(layer: Any) -> dict[str, Any]:
    """The norms of a layer by their places in `native.Layer`. Layers of both forms have a `post_attention_layernorm`,
    and only in the Gemma form it is behind the attention."""
    names = _PLACES if _is_gemma(layer) else _PLACES_OF_TWO
    found = {place: getattr(layer, name) for place, name in names.items()}
    if hasattr(layer.self_attn, "q_norm"):
        found |= {"of_queries": layer.self_attn.q_norm, "of_keys": layer.self_attn.k_norm}
    return found


def _is_gemma(layer: Any) -> bool:
    return hasattr(layer, "post_feedforward_layernorm")


def tried(layer: WholeLayer, rows: Tensor, angles: Angles) -> Iterator[dict[str, Any]]:
    """The inputs of a decode pass of `rows` [rows, 1, hidden], each time with an equal cache."""
    while True:
        cache = KvCache()
        slots = [cache.open(_CAPACITY) for _ in range(len(rows))]
        cache.begin_decode(slots, [_POSITION] * len(rows), rows.device)
        attention = PartedAttention(SDPA, (FULL,) * (layer.index + 1))
        attention.cache, cache.attention = cache, attention
        yield {
            "hidden_states": rows,
            "past_key_values": cache,
            "position_embeddings": angles,
        }


@contextmanager
def cut_everywhere(layer: WholeLayer) -> Iterator[None]:
    """While open, the compiled call is cut wherever it may be."""
    with ExitStack() as stack:
        for cut in layer.cuts:
            stack.callback(cut.hook(_nothing).remove)
        yield


def _nothing(*_: object) -> None:
    """A hook that changes nothing."""


def _joint(layer: nn.Module, count: int) -> Joint | None:
    """The weight that a layer shares with the others that read the same rows."""
    held = getattr(layer, "packed", None)
    if not isinstance(held, JointPart) or len(held.joint.sizes) != count:
        return None
    return held.joint


def _alone(layer: PackedLinear) -> tuple[Any, Tensor | None]:
    return getattr(layer, "packed", None), layer.bias


def _is_compiled(weight: object, bias: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether the compiled functions multiply rows of this dtype with a weight, and add its bias."""
    is_own = isinstance(weight, PanelWeight | CodedWeight) and weight.dtype == dtype
    return is_own and (bias is None or bias.dtype == dtype)


def _product(weight: PanelWeight | CodedWeight, bias: Tensor | None) -> native.Weight:
    struct = native.Weight.from_buffer_copy(weight.struct)
    struct.bias = None if bias is None else bias.data_ptr()
    return struct
