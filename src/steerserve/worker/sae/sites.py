"""The places where an SAE reads and writes: the module of a site in a model, which side of it, and how values
convert."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from msgspec import structs
from torch import Tensor, nn

from steerserve.errors import Refusal
from steerserve.rules.saes import sites as rules
from steerserve.rules.saes.sites import (
    ATTN_OUT,
    ATTN_RAW,
    EDITABLE,
    EMBED,
    LOGITS,
    MLP_IN,
    MLP_NEURONS,
    MLP_OUT,
    MLP_RAW,
    PATTERN,
    READABLE,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    ROUTER_LOGITS,
    STREAM_SITES,
    K,
    ModelSite,
    Q,
    V,
    Z,
)
from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.model.operands import Operands
from steerserve.worker.model.written_cache import WrittenCache, kv_cache_in, with_cache
from steerserve.worker.sae.families import (
    FAMILIES,
    HEAD_SITES,
    experts,
    inputs,
    normalises,
    objection,
    place,
)


@dataclass(frozen=True, slots=True)
class RowDeltas:
    """What is added to the rows of a value for which `is_added` [rows, 1, 1] is true. The other rows stay the same
    bits, which adding zero would not do to -0."""

    delta: Tensor
    is_added: Tensor


@dataclass(frozen=True, slots=True)
class Replaced:
    """Numbers of a value [rows, T, width] in whose place others stand: where `places` is true, those of `values`,
    float32."""

    places: Tensor
    values: Tensor

    def change_of(self, value: Tensor) -> Tensor:
        """What is added to a value by it, float32."""
        return torch.where(self.places, self.values - value.float(), self.values.new_zeros(()))


@dataclass(frozen=True, slots=True)
class Moved:
    """What is done to a value: all of `added` is added, one after the other. Then numbers are `replaced`, and `change`
    [n, T, width], in float32, is added with one rounding at the positions where it is not 0. The other positions stay
    the same bits. `rows` [n] are the rows of which `change` and `replaced` are; None for all rows."""

    added: Sequence[Tensor | RowDeltas]
    change: Tensor | None
    replaced: Replaced | None = None
    rows: Tensor | None = None

    def of_all_rows(self, count: int) -> Moved:
        """The same edits for all of `count` rows: nothing is done to the rows that are not among `rows`."""
        rows, change, replaced = self.rows, self.change, self.replaced
        if rows is None or change is None:
            return self

        def spread(some: Tensor) -> Tensor:
            return some.new_zeros(count, *some.shape[1:]).index_copy_(0, rows, some)

        if replaced is not None:
            replaced = Replaced(spread(replaced.places), spread(replaced.values))
        return Moved(self.added, spread(change), replaced)


Change = Tensor | RowDeltas | Moved | None


@dataclass(frozen=True, slots=True)
class Called:
    """What is done to a value is known only when `run` is called, with the tensor of the site and a function that makes
    the tensor of the site from what is done. `run` returns the tensor that is used instead."""

    run: Callable[[Tensor, Callable[[Change], Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Told:
    """What is done to a value. `tell` gets the value [rows, T, width] that the model goes on with."""

    change: Change
    tell: Callable[[Tensor], None]


AtSite = Callable[[Tensor], Change | Called | Told]


class Handle(Protocol):
    """A registered hook, which `remove` takes away."""

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The input or the output of one module, and how its tensor relates to the site's value [rows, T, width].

    The value is `scale` x tensor, plus the input of the layer where `has_residual`. `path` is the module's name in the
    model. `is_flat`: the tensor has the shape [rows * T, width]. `heads` is the number of heads that the width is
    divided into; 0 where it is not.
    """

    name: str
    module: nn.Module
    path: str
    width: int
    is_input: bool = False
    scale: float = 1.0
    layer: nn.Module | None = None
    has_residual: bool = False
    is_flat: bool = False
    heads: int = 0

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return next((self.layer or self.module).parameters()).device

    @property
    def is_prepended(self) -> bool:
        """Whether a hook of this site runs before the hooks that its module has already."""
        return self.name == RESID_PRE if self.is_input else self.name not in (RESID_MID, RESID_POST)

    def hook(self, edit: AtSite) -> Handle:
        """Hook the site. `edit` gets the value [rows, T, width] and returns a tensor to add to it, whose shape
        broadcasts to the value's, such a tensor for some of the rows, the edits of rows, or None; or a `Called`, which
        tells it later; or a `Told`, which gets the value afterwards. `edit` and `Told` must clone a value that they
        keep, because some layers write into the tensor later."""
        residual: list[Tensor] = []

        def change(tensor: Tensor) -> Tensor | None:
            return self._changed(tensor, edit, residual.pop() if residual else None)

        if self.is_input:
            # this hook must run before the hook of an inner site that keeps the layer's input
            first: Handle = self.module.register_forward_pre_hook(
                lambda _, args, kwargs: _with_input(change, args, kwargs),
                with_kwargs=True,
                prepend=self.is_prepended,
            )
        else:
            # the hook of an added output must run before the hook of the stream that it is added to
            hook = _OutputHook(change, is_raw=self.name in (ATTN_RAW, MLP_RAW))
            first = self.module.register_forward_hook(hook, prepend=self.is_prepended)
            _put_raw_first(self.module)
        if self.layer is None:
            return first

        def keep(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
            residual[:] = [args[0] if args else kwargs["hidden_states"]]

        return _Both(first, self.layer.register_forward_pre_hook(keep, with_kwargs=True))

    def watch(self, edit: AtSite) -> Handle:
        """Hook the site, with an `edit` that changes nothing."""
        return self.hook(edit)

    def _changed(self, tensor: Tensor, edit: AtSite, residual: Tensor | None) -> Tensor | None:
        shaped = self._shaped(tensor, residual)
        value = self._value(shaped, residual)
        change = edit(value)
        if isinstance(change, Called):
            return change.run(tensor, lambda told: self._moved(tensor, shaped, value, told))
        if isinstance(change, Told):
            moved = self._moved(tensor, shaped, value, change.change)
            change.tell(self._value(self._shaped(moved, residual), residual))
            return moved
        return None if change is None else self._moved(tensor, shaped, value, change)

    def _shaped(self, tensor: Tensor, residual: Tensor | None) -> Tensor:
        """The tensor of the site as [rows, T, width]."""
        if self.is_flat and residual is not None:
            return tensor.view(residual.shape[0], -1, tensor.shape[-1])
        return tensor

    def _value(self, shaped: Tensor, residual: Tensor | None) -> Tensor:
        value = shaped if self.scale == 1.0 else shaped * self.scale
        if self.has_residual and residual is not None:
            value = residual.to(value.device) + value
        return value

    def _moved(self, tensor: Tensor, shaped: Tensor, value: Tensor, delta: Change) -> Tensor:
        """The tensor of the site after what is done to its value; the same tensor where nothing is done."""
        if delta is None:
            return tensor
        if isinstance(delta, Moved):
            added = shaped
            for one in delta.added:
                added = self._added(added, one)
            if delta.change is None:
                return added.view(tensor.shape)
            if delta.rows is None:
                return self._edited(added, value, delta, None).view(tensor.shape)
            rows = delta.rows.to(tensor.device)
            edited = self._edited(added[rows], value, delta, rows)
            return added.index_copy(0, rows, edited).view(tensor.shape)
        return self._added(shaped, delta).view(tensor.shape)

    def _edited(self, added: Tensor, value: Tensor, moved: Moved, rows: Tensor | None) -> Tensor:
        """Edit rows `added` [n, T, width] of the tensor of the site. `rows` are their numbers in the pass; None for all
        rows. `value` is the value of all rows of the pass."""
        assert moved.change is not None
        change, base = moved.change.to(added.device), added.float()
        is_edited = change.ne(0).any(-1, keepdim=True)
        if (replaced := moved.replaced) is not None:
            is_edited = is_edited | replaced.places.any(-1, keepdim=True)
            if self.scale == 1.0 and not self.has_residual:
                base = torch.where(replaced.places, replaced.values, base)
            else:
                change = change + replaced.change_of(value if rows is None else value[rows])
        change = change if self.scale == 1.0 else change / self.scale
        return torch.where(is_edited, (base + change).to(added.dtype), added)

    def _added(self, shaped: Tensor, delta: Tensor | RowDeltas) -> Tensor:
        """The tensor of the site with a delta of its value."""
        if isinstance(delta, RowDeltas):
            changed = shaped + self._scaled(delta.delta, shaped)
            return torch.where(delta.is_added, changed, shaped)
        return shaped + self._scaled(delta, shaped)

    def _scaled(self, delta: Tensor, tensor: Tensor) -> Tensor:
        """The delta of the value, as it is added to the tensor of the site."""
        delta = delta.to(tensor.device, tensor.dtype)
        return delta if self.scale == 1.0 else delta / self.scale


@dataclass(frozen=True, slots=True, eq=False)
class _OutputHook:
    """A forward hook that changes the output of a module. `is_raw` says that its site is the output itself, and not
    what is added to the residual stream."""

    change: Callable[[Tensor], Tensor | None]
    is_raw: bool

    def __call__(self, module: nn.Module, args: object, output: Any) -> Any:
        return _with_output(self.change, output)


def _put_raw_first(module: nn.Module) -> None:
    """Let the hooks of the output itself run before those of what is added to the stream. In many architectures both
    sites are the output of one module."""
    hooks = cast("OrderedDict[int, object]", module._forward_hooks)
    raw = [key for key, hook in hooks.items() if isinstance(hook, _OutputHook) and hook.is_raw]
    for key in reversed(raw):
        hooks.move_to_end(key, last=False)


@dataclass(frozen=True, slots=True)
class AttentionSite(Site):
    """Queries, keys or values of a layer [rows, T, heads * dim], or its attention probabilities [rows, T, heads, keys],
    which are only read. `layer_number` is the number of the layer. `query_heads` is the number of heads of queries."""

    layer_number: int = 0
    query_heads: int = 0

    def hook(self, edit: AtSite) -> Handle:
        """Hook the site. Attention goes on with what is done to the value, and so it is not a compiled function."""
        if self.name == PATTERN:
            return self.watch(edit)
        seen: list[str] = []

        def change(heads: Tensor) -> Tensor:
            seen.append(self.name)
            return self._heads_changed(edit, heads)

        def check_seen(_: nn.Module, __: object, out: Any) -> None:
            if out is not None and not seen:  # None after an error in the module
                raise RuntimeError(f"the attention at {self.path} has not shown its {self.name}")
            seen.clear()

        written = {K: {"keys": change}, V: {"values": change}}.get(self.name, {})
        # no compiled function writes to this cache
        cached = self.module.register_forward_pre_hook(
            lambda module, args, kwargs: with_cache(
                module, args, kwargs, lambda cache: WrittenCache(cache, **written)
            ),
            with_kwargs=True,
        )
        checked = _Both(cached, self.module.register_forward_hook(check_seen, always_call=True))
        if self.name != Q:
            return checked
        noted = self._opened(lambda module: Operands(module, self.query_heads, change))
        return _Both(checked, noted)

    def watch(self, edit: AtSite) -> Handle:
        if self.name == PATTERN:
            return self.module.register_forward_hook(
                lambda _, __, out: self._give(edit, out[1].transpose(1, 2))
            )

        def read(operands: Operands, cache: KvCache | None) -> None:
            self._give(edit, self._read(operands, cache))

        return self._opened(lambda module: Operands(module, self.query_heads), read)

    def _opened(
        self,
        make: Callable[[nn.Module], Operands],
        read: Callable[[Operands, KvCache | None], None] | None = None,
    ) -> Handle:
        """Open what notes the operands in each call of the module, and `read` it after a call without an error."""
        opened: list[Operands] = []

        def open_operands(module: nn.Module, *_: object) -> None:
            opened.append(make(module))
            opened[-1].__enter__()

        def end(
            _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], out: Any
        ) -> None:
            if not opened:  # a hook before this one has failed
                return
            operands = opened.pop()
            operands.__exit__(None, None, None)
            if out is not None and read is not None:  # None after an error in the module
                read(operands, kv_cache_in((*args, *kwargs.values())))

        return _Both(
            self.module.register_forward_pre_hook(open_operands),
            self.module.register_forward_hook(
                end, with_kwargs=True, always_call=True, prepend=True
            ),
        )

    def _heads_changed(self, edit: AtSite, heads: Tensor) -> Tensor:
        """The queries, keys or values [rows, heads, T, dim] that attention goes on with."""
        value = heads.transpose(1, 2).flatten(2)
        moved = self._changed(value, edit, None)
        if moved is None or moved is value:
            return heads
        return moved.reshape(*moved.shape[:2], heads.shape[1], -1).transpose(1, 2)

    def _read(self, operands: Operands, cache: KvCache | None) -> Tensor:
        """The value of the site, from what was noted in the pass that has ended."""
        query = operands.query
        assert query is not None
        if self.name == Q:
            return query.transpose(1, 2).flatten(2)
        if cache is not None:
            found = cache.written(self.layer_number)[self.name == V]
        else:
            every = operands.key if self.name == K else operands.value
            assert every is not None
            found = every[:, :: every.shape[1] // self.heads, -query.shape[2] :]
        return found.transpose(1, 2).flatten(2)

    @staticmethod
    def _give(edit: AtSite, value: Tensor) -> None:
        told = edit(value)
        if isinstance(told, Told):
            told.tell(value)


def attention_site(
    name: str, module: nn.Module, path: str, layer: int, heads: int, width: int
) -> AttentionSite:
    """A site inside the attention `module` of a layer, whose `heads` heads of queries together have `width` numbers."""
    own = heads if name in (Q, PATTERN) else heads // _sharing(module)
    wide = 0 if name == PATTERN else width // heads * own
    return AttentionSite(name, module, path, wide, heads=own, layer_number=layer, query_heads=heads)


def _sharing(attention: Any) -> int:
    """How many heads of queries share a head of keys."""
    if hasattr(
        attention, "new_decoder_architecture"
    ):  # Falcon, whose new form repeats the heads of keys before
        own = attention.num_heads if attention.new_decoder_architecture else attention.num_kv_heads
        return int(attention.num_heads // own)
    return int(getattr(attention, "num_key_value_groups", 1))


@dataclass(frozen=True, slots=True)
class _Both:
    first: Handle
    second: Handle

    def remove(self) -> None:
        self.first.remove()
        self.second.remove()


def find(model: nn.Module, layers: int, site: str, layer: int) -> Site:
    """The site `site` of decoder layer `layer`; the model has `layers` layers.

    Raises:
        Refusal: SAE_INCOMPATIBLE, with architecture and site, when this layer does not have the site.
    """
    return _find(model, *decoder_layers(model, layers), site, layer)


def _find(model: nn.Module, path: str, stack: nn.ModuleList, site: str, layer: int) -> Site:
    """As `find`, where `stack` has the decoder layers, and lies at `path`."""
    if site not in READABLE:
        raise _lacks(model, site, layer, f"sites are {', '.join(READABLE)}")
    if not 0 <= layer < len(stack):
        raise _lacks(model, site, layer, f"its layers are [0, {len(stack)})")
    if site == EMBED:
        return _embedding(model, layer)
    if site == LOGITS:
        return _logits(model, layer)
    block, path = stack[layer], f"{path}.{layer}"
    hidden = int(_text_config(model).hidden_size)
    if site in (RESID_PRE, RESID_POST):
        return Site(site, block, path, hidden, is_input=site == RESID_PRE)
    family = FAMILIES.get(_kind(model))
    if family is None:
        raise _lacks(
            model,
            site,
            layer,
            "for this architecture only the residual stream before and after a layer is known",
        )
    if why := objection(block, family, site):
        raise _lacks(model, site, layer, why)
    name, is_input = place(block, family, site)
    module = block.get_submodule(name)
    if site in HEAD_SITES:
        width = inputs(block.get_submodule(family.projection))
        return attention_site(site, module, f"{path}.{name}", layer, _heads(model, width), width)
    is_flat = family.is_flat and site in (MLP_OUT, MLP_RAW, MLP_IN, MLP_NEURONS)
    is_flat = is_flat or site == ROUTER_LOGITS
    is_added = site in (RESID_MID, ATTN_OUT, MLP_OUT)
    return Site(
        site,
        module,
        f"{path}.{name}",
        _width(module, site) or hidden,
        is_input=is_input,
        scale=float(getattr(block, "residual_multiplier", 1.0)) if is_added else 1.0,
        layer=block if is_flat or site == RESID_MID else None,
        has_residual=site == RESID_MID,
        is_flat=is_flat,
        heads=_heads(model, inputs(module)) if site == Z else 0,
    )


def listed(model: nn.Module, layers: int) -> list[ModelSite]:
    """The sites that at least one layer of this model has. A site has an entry for each form that it has in layers."""
    try:
        path, stack = decoder_layers(model, layers)
    except Refusal:
        return []
    found: dict[ModelSite, list[int]] = {}
    for name in READABLE:
        for layer in range(layers if name not in (EMBED, LOGITS) else 1):
            try:
                site = _find(model, path, stack, name, layer)
            except Refusal:
                continue
            found.setdefault(_described(site, f"{path}.{layer}", f"{path}.{{layer}}"), []).append(
                layer
            )
    return [
        one if one.site == LOGITS else structs.replace(one, layers=tuple(at))
        for one, at in found.items()
    ]


def _described(site: Site, block: str, pattern: str) -> ModelSite:
    """What is told of a site of the layer at the path `block`, without its layer."""
    path = site.path
    if path == block or path.startswith(f"{block}."):
        path = pattern + path[len(block) :]
    can_write = site.name in EDITABLE
    return ModelSite(site.name, None, site.width or None, site.heads or None, path, can_write)


def direct_path_objection(model: nn.Module, layers: int, site: Site, layer: int) -> str | None:
    """Why a value at this site is not known to reach the stream after the last layer as a term of a sum; None where it
    does. It does where later layers only add to the stream."""
    if site.name not in STREAM_SITES:
        return "its values are not added to the residual stream"
    if site.name == RESID_POST and layer == layers - 1:
        return None
    _, stack = decoder_layers(model, layers)
    family = FAMILIES.get(_kind(model))
    if family is None:
        return "whether the later layers only add to the residual stream is not known"
    return next((why for block in stack[layer:] if (why := normalises(block, family))), None)


def widths(model: nn.Module, layers: int) -> dict[str, int]:
    """The sites of this model at which edits act, each with its width."""
    return rules.widths(listed(model, layers))


def has_layer_norm(model: nn.Module, layers: int) -> bool:
    """Whether the layers use LayerNorm, which subtracts the mean. RMSNorm does not."""
    _, stack = decoder_layers(model, layers)
    return any(
        isinstance(child, nn.LayerNorm) or type(child).__name__.endswith("LayerNorm")
        for child in stack[0].children()
    )


def _embedding(model: Any, layer: int) -> Site:
    """The token embedding as it enters the residual stream, after the norm or the factor that some models apply to
    it."""
    if layer != 0:
        raise _lacks(model, EMBED, layer, "the token embedding is at layer 0")
    embedding = model.get_input_embeddings()
    path = next(name for name, module in model.named_modules() if module is embedding)
    above, _, name = path.rpartition(".")
    parent = model.get_submodule(above)
    width = int(getattr(embedding, "embedding_dim", 0))
    if width != int(_text_config(model).hidden_size):
        raise _lacks(model, EMBED, layer, "its embedding is projected to the width of the stream")
    behind = getattr(parent, f"{name}_layernorm", None)
    if isinstance(behind, nn.Module):
        return Site(EMBED, behind, f"{path}_layernorm", width)
    scale = float(getattr(parent, "embedding_multiplier", 1.0))
    return Site(EMBED, embedding, path, width, scale=scale)


def _logits(model: Any, layer: int) -> Site:
    """The output embedding. What the model gives may be a multiple of its output, or have a soft cap."""
    head = model.get_output_embeddings()
    if head is None:
        raise _lacks(model, LOGITS, layer, "it has no output embedding")
    path = next((name for name, module in model.named_modules() if module is head), "")
    return Site(LOGITS, head, path, int(head.weight.shape[0]))


def _width(module: nn.Module, site: str) -> int:
    """The width of a site that does not have the width of the stream; 0 for others."""
    if site in (Z, MLP_NEURONS):
        return inputs(module)
    return experts(module) if site == ROUTER_LOGITS else 0


def _text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _heads(model: nn.Module, width: int) -> int:
    """The number of heads that a width is divided into; 0 where the configuration does not say."""
    heads = int(getattr(_text_config(model), "num_attention_heads", 0) or 0)
    return heads if heads and width % heads == 0 else 0


def _kind(model: nn.Module) -> str:
    return str(_text_config(model).model_type)


def _lacks(model: nn.Module, site: str, layer: int, why: str) -> Refusal:
    kind = _kind(model)
    what = f" ({READABLE[site]})" if site in READABLE else ""
    return Refusal(
        "SAE_INCOMPATIBLE",
        f"{kind} offers no site {site!r}{what} at layer {layer}: {why}",
        architecture=kind,
        site=site,
        layer=layer,
    )


def _with_input(
    change: Callable[[Tensor], Tensor | None], args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]] | None:
    if args:
        changed = change(args[0])
        return None if changed is None else ((changed, *args[1:]), kwargs)
    changed = change(kwargs["hidden_states"])
    return None if changed is None else (args, {**kwargs, "hidden_states": changed})


def _with_output(change: Callable[[Tensor], Tensor | None], output: Any) -> Any:
    if isinstance(output, (tuple, list)):
        changed = change(output[0])
        return None if changed is None else type(output)((changed, *output[1:]))
    return change(output)
