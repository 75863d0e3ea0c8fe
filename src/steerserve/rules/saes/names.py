"""Reads layer, width, sparsity and site from the path of an SAE in its repository.

These are hints for people who choose an SAE. The files themselves decide. The patterns cover the repositories of
SAELens, Gemma Scope, Llama Scope, Qwen Scope, dictionary_learning and sparsify.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from steerserve.rules.saes import sites


@dataclass(frozen=True, slots=True)
class PathHints:
    """The facts that a path gives; None where it gives none.

    `width` has the form of `width_label`, or `8x` where the path gives only the factor. `l0` is the mean number of
    active features, or its size class (`small`, `medium`, `big`).
    """

    layer: int | None = None
    width: str | None = None
    l0: int | str | None = None
    site: str | None = None


_LAYERS = tuple(
    map(
        re.compile,
        (
            r"blocks\.(\d{1,4})\.",
            r"(?i:(?:^|[/_.\-])layers?)[_\-.]?(\d{1,4})(?!\d)",
            r"(?:^|/)(?:transformer\.)?h\.(\d{1,4})(?!\d)",
            r"(?:^|[-_/])L(?!0[_-]\d)(\d{1,4})(?:[RAM]|TC)?(?=[-_/.]|$)",
            r"[-_]l(\d{1,4})(?i:\.pth?)$",
            r"(?:^|/)(\d{1,4})-(?:res|att|mlp)",
        ),
    )
)
"""How names give a layer, in the order of preference. Longer numbers mean something else."""

_REPO_LAYER = re.compile(r"-l(\d{1,4})$")
_EMBEDDING = re.compile(r"(?:^|[/.])(?:embedding|embed_tokens|embed_in|wte)(?:[/.]|$)|(?:^|/)e-res")

_COUNTS = tuple(
    map(
        re.compile,
        (
            r"hook_[a-z_]+_(\d{4,6})(?:[_/:]|$)",
            r"(?:^|_)ds(\d{3,7})(?:_|$)",
        ),
    )
)
"""Patterns for the number of features as a plain number."""

_THOUSANDS = tuple(
    map(
        re.compile,
        (
            r"width[_\-](\d+)([km])",
            r"(?:^|[-_])W(\d+)(K)",
            r"v\d_(\d+)(k)",
        ),
    )
)
_REPO_THOUSANDS = (*_THOUSANDS, re.compile(r"-(\d+)(k)(?=[-_.]|$)"))
_POWER = re.compile(r"2pow(\d{1,2})(?!\d)")
_FACTOR = re.compile(r"-(\d+)x(?=[-/]|$)")
_WIDE_4096 = re.compile(r"llama-?3([._]1)?-8b", re.IGNORECASE)
"""Models whose residual stream is 4,096 wide, so that a factor gives the width."""

_L0 = re.compile(r"(?:^|[/_\-])[lL]0[_\-](\d{1,9}|small|medium|big)(?=[/_\-.]|$)")

_HOOKS = (
    ("hook_resid_pre", sites.RESID_PRE),
    ("hook_resid_mid", sites.RESID_MID),
    ("hook_resid_post", sites.RESID_POST),
    ("hook_attn_out", sites.ATTN_OUT),
    ("hook_mlp_out", sites.MLP_OUT),
    ("hook_mlp_in", sites.MLP_IN),
    ("hook_z", sites.Z),
    ("Hcat_z", sites.Z),
    ("mlp.hook_post", sites.MLP_NEURONS),
)
_SITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), site)
    for pattern, site in (
        # Gemma Scope 2 uses attn_out for the outputs of the heads; dictionary_learning does not
        (r"^[^/]+/gemma-scope-2-[^/]*/attn_out", sites.Z),
        (r"(?:^|/)resid_pre(?:_all)?[/_]", sites.RESID_PRE),
        (r"(?:^|/)resid_mid(?:_all)?[/_]", sites.RESID_MID),
        (r"(?:^|/)resid_post(?:_all)?[/_]", sites.RESID_POST),
        (r"(?:^|/)attn_out(?:_all)?[/_]", sites.ATTN_OUT),
        (r"(?:^|/)mlp_out(?:_all)?[/_]", sites.MLP_OUT),
        (r"[-_/]L\d+R(?:[-_/.]|$)", sites.RESID_POST),
        (r"[-_/]L\d+A(?:[-_/.]|$)", sites.ATTN_OUT),
        (r"[-_/]L\d+M(?:[-_/.]|$)", sites.MLP_OUT),
        (r"(?:^|[/.])(?:layers|h)[._]\d+$", sites.RESID_POST),
        (r"(?:^|[/.])(?:layers|h)[._]\d+\.mlp$", sites.MLP_RAW),
        (r"(?:^|[/.])(?:layers|h)[._]\d+\.(?:self_attn|attn|attention)$", sites.ATTN_RAW),
        (r"/\d+-res(?:-|$)", sites.RESID_POST),
        (r"/\d+-att(?:-|$)", sites.ATTN_OUT),
        (r"/\d+-mlp(?:-|$)", sites.MLP_OUT),
        (r"^[^/]+/gemma-scope-[^/]*-res(?:-canonical)?/", sites.RESID_POST),
        (r"^[^/]+/gemma-scope-[^/]*-mlp(?:-canonical)?/", sites.MLP_OUT),
        (r"^[^/]+/gemma-scope-[^/]*-att(?:-canonical)?/", sites.Z),
        (r"^[^/]+/[^/]*SAE-Res-", sites.RESID_POST),
        (r"^[^/]+/[^/]*-resid-post-", sites.RESID_POST),
        (r"^[^/]+/[^/]*-resid-mid-", sites.RESID_MID),
        (r"^[^/]+/[^/]*-mlp-out-", sites.MLP_OUT),
        (r"^[^/]+/[^/]*-attn-out-", sites.ATTN_OUT),
        (r"-SAE-l\d+\.(?:pt|pth)$", sites.RESID_POST),
    )
)


def hints(repo_id: str, path: str) -> PathHints:
    """The facts in the path of an SAE; the name of the repository fills the gaps.

    Args:
        path: a folder or a file in the repository; `.` is the top.
    """
    inside = "" if path == "." else path
    whole = f"{repo_id}/{inside}"
    is_embedding = _EMBEDDING.search(inside) is not None
    return PathHints(
        layer=0 if is_embedding else _layer(repo_id, inside),
        width=_width(inside, _THOUSANDS) or _width(repo_id, _REPO_THOUSANDS) or _factor(whole),
        l0=l0_in(inside) or l0_in(repo_id),
        site=sites.EMBED if is_embedding else _site(whole),
    )


def width_label(d_sae: int) -> str:
    """A width as people write it: 16384 is `16k`, 65536 is `65k`, 1048576 is `1m`. Other widths are written in full."""
    if d_sae % 1024:
        return str(d_sae)
    return f"{d_sae >> 20}m" if d_sae % (1 << 20) == 0 else f"{d_sae // 1000}k"


def layer_in(name: str) -> int | None:
    """The layer that a path or a name gives; the last one where it gives several in one way."""
    for pattern in _LAYERS:
        layers = pattern.findall(name)
        if layers:
            return int(layers[-1])
    return None


def l0_in(name: str) -> int | str | None:
    """The mean number of active features that a path or a name gives, or a size class (`small`, `medium`, `big`)."""
    values = _L0.findall(name)
    if not values:
        return None
    return int(values[-1]) if values[-1].isdigit() else str(values[-1])


def _layer(repo_id: str, path: str) -> int | None:
    layer = layer_in(path)
    if layer is None and (suffix := _REPO_LAYER.search(repo_id)):
        return int(suffix[1])
    return layer


def _width(text: str, thousands: tuple[re.Pattern[str], ...]) -> str | None:
    for pattern in _COUNTS:
        if match := pattern.search(text):
            return width_label(int(match[1]))
    for pattern in thousands:
        if match := pattern.search(text):
            return width_label(_features(int(match[1][:6]), match[2]))
    power = _POWER.search(text)
    return width_label(1 << int(power[1])) if power and int(power[1]) <= 40 else None


def _features(count: int, unit: str) -> int:
    """The number of features for a rounded width. Both 64k and 65k stand for 65536."""
    if unit in "mM":
        return count << 20
    rounded_up = -(-count * 1000 // 1024)
    is_power = rounded_up & (rounded_up - 1) == 0
    return (rounded_up if is_power else count) * 1024


def _factor(whole: str) -> str | None:
    match = _FACTOR.search(whole)
    if not match:
        return None
    factor = int(match[1][:4])
    return width_label(4096 * factor) if _WIDE_4096.search(whole) else f"{factor}x"


def _site(whole: str) -> str | None:
    for name, site in _HOOKS:
        if name in whole:
            return site
    return next((site for pattern, site in _SITES if pattern.search(whole)), None)
