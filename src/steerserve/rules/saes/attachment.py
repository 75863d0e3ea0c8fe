"""Chooses among attached SAEs, and checks whether an SAE fits the loaded model at a layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.saes import sites as sae_sites
from steerserve.rules.saes.sites import EMBED, RESID_POST, SITES


class AttachedSae(Protocol):
    """The facts about one attached SAE that the rules need; `key` is its name in the engine."""

    @property
    def key(self) -> str: ...
    @property
    def sae_id(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def d_sae(self) -> int: ...

    def is_named(self, sae_id: str) -> bool:
        """Whether this id names the SAE. An SAE can have other ids beside its own."""


Sae = TypeVar("Sae", bound=AttachedSae)


@dataclass(frozen=True, slots=True)
class SaeChoice:
    """A choice among the attached SAEs. None means any id, or any layer."""

    sae_id: str | None = None
    layer: int | None = None

    def among(self, attached: Sequence[Sae]) -> list[Sae]:
        """The attached SAEs that fit the choice, in the order in which they were attached."""
        return [
            candidate
            for candidate in attached
            if (self.sae_id is None or candidate.is_named(self.sae_id))
            and self.layer in (None, candidate.layer)
        ]

    def first(self, attached: Sequence[Sae]) -> Sae:
        """Raises:
        Refusal: SAE_NOT_ATTACHED when no attached SAE fits the choice.
        """
        fitting = self.among(attached)
        if fitting:
            return fitting[0]
        if not attached or self == SaeChoice():
            raise Refusal("SAE_NOT_ATTACHED", "no SAE is attached")
        raise Refusal(
            "SAE_NOT_ATTACHED",
            self.absent,
            sae_id=self.sae_id,
            layer=self.layer,
            attached=[{"sae_id": one.sae_id, "layer": one.layer} for one in attached],
        )

    def only(self, attached: Sequence[Sae]) -> Sae:
        """Raises:
        Refusal: SAE_NOT_ATTACHED when no attached SAE fits the choice; INVALID_PARAMETER when several do.
        """
        first = self.first(attached)
        fitting = self.among(attached)
        if len(fitting) == 1:
            return first
        # the layer tells one SAE at two layers apart, the ids tell several SAEs apart
        part = "layer" if len({sae.sae_id for sae in fitting}) == 1 else "sae_id"
        raise refuse_parameter(
            part,
            "must be given, because several attached SAEs could be meant",
            attached=[{"sae_id": one.sae_id, "layer": one.layer} for one in attached],
        )

    @property
    def absent(self) -> str:
        """That no attached SAE fits the choice, as a sentence."""
        at = "" if self.layer is None else f" at layer {self.layer}"
        if self.sae_id is None:
            return f"no SAE is attached{at}"
        return f"SAE {self.sae_id!r} is not attached{at}"

    def __str__(self) -> str:
        sae = "any SAE" if self.sae_id is None else f"SAE {self.sae_id!r}"
        return f"{sae} at {'any layer' if self.layer is None else f'layer {self.layer}'}"


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The choice of a cluster: the SAE that it is bound to, and the layer and the number of features that its document
    declares. None means that the cluster is unbound, or that the document does not declare the fact."""

    sae_id: str | None = None
    layer: int | None = None
    n_features: int | None = None

    def among(self, attached: Sequence[Sae]) -> list[Sae]:
        """The attached SAEs that a cluster may steer, the best first. (1) A bound cluster steers its own SAE. (2)
        Where that is not attached, it steers SAEs with the declared layer and number of features, if both are declared.
        (3) An unbound cluster may steer any SAE; one with the declared number of features is better, then one at the
        declared layer."""
        ordered = sorted(attached, key=lambda sae: (not self.is_wide(sae), not self._is_at(sae)))
        if self.sae_id is None:
            return ordered  # (3)
        own = [sae for sae in ordered if sae.is_named(self.sae_id)]
        if own:
            return own  # (1)
        if self.layer is None or self.n_features is None:
            return []
        return [sae for sae in ordered if self.is_wide(sae) and self._is_at(sae)]  # (2)

    def is_wide(self, sae: AttachedSae) -> bool:
        """Whether an SAE has the declared number of features."""
        return self.n_features in (None, sae.d_sae)

    def _is_at(self, sae: AttachedSae) -> bool:
        return self.layer in (None, sae.layer)

    def __str__(self) -> str:
        return f"SAE {self.sae_id!r}" if self.sae_id is not None else "any SAE"


FIRST_SAE = SaeChoice()
"""The SAE that was attached first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a compatibility check. One error is enough to refuse the attach; warnings go into its answer."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def is_compatible(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class Claim:
    """The facts about an SAE from its files and from overrides. A fact that neither gives is None.

    `d_in` is None for an SAE whose files nobody has read, such as the record of a whole repository. `reason` says why
    the SAE can never be attached. `needs` are overrides that are required and missing.
    """

    d_in: int | None
    layer: int | None
    model_name: str | None
    site: str | None
    hook_name: str | None = None
    reason: str | None = None
    needs: tuple[str, ...] = ()


def compatibility(
    claim: Claim,
    layer: int,
    *,
    hidden_size: int,
    layers: int,
    model_names: tuple[str, ...],
    site_widths: Mapping[str, int] | None = None,
) -> Verdict:
    """Whether an SAE can be attached to the loaded model at a layer.

    Errors:
    (1) The model lacks the layer, or the layer of an SAE of the embedding is not 0.
    (2) The SAE can never be attached, a required override is missing, or its hook name has no known site.
    (3) The model lacks the site, or the width of the site is not d_in.
    Warnings:
    (4) The SAE was trained on another layer or another model family, or it does not say where it reads.

    `site_widths` has the width of every site that the model has. If it is empty, d_in is compared with `hidden_size`.
    """
    errors: list[str] = []
    site = claim.site or RESID_POST
    if not 0 <= layer < layers:
        errors.append(f"layer {layer} is outside [0, {layers}) of the loaded model")
    elif site == EMBED and layer != 0:
        errors.append(f"the SAE reads the token embedding, which is at layer 0, not {layer}")
    if claim.reason:
        errors.append(claim.reason)
    is_site_unknown = claim.site is None and claim.hook_name
    needs = [name for name in claim.needs if name != "site" or not is_site_unknown]
    if needs:
        errors.append(
            f"the files of the SAE do not say its {', '.join(needs)}; give that in `overrides`"
        )
    if is_site_unknown and claim.hook_name:
        why = sae_sites.objection(claim.hook_name)
        errors.append(f"the SAE reads at {claim.hook_name!r}, {why}; give `site` in `overrides`")
    errors += _of_width(claim, site, hidden_size, site_widths or {})
    return Verdict(tuple(errors), tuple(_warnings(claim, layer, model_names)))


def refuse_incompatible(verdict: Verdict, claim: Claim, hidden_size: int) -> None:
    """Refuse an SAE with errors.

    Raises:
        Refusal: SAE_INCOMPATIBLE with every error.
    """
    if not verdict.is_compatible:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            "; ".join(verdict.errors),
            errors=list(verdict.errors),
            d_in=claim.d_in,
            hidden_size=hidden_size,
        )


def _of_width(claim: Claim, site: str, hidden_size: int, widths: Mapping[str, int]) -> list[str]:
    if not claim.d_in:
        return [
            "the width of the SAE is not known; only an SAE whose files have been read can be attached"
        ]
    if not widths:
        if claim.d_in == hidden_size:
            return []
        return [
            f"the SAE reads {claim.d_in} values per token; the hidden size of the model is {hidden_size}"
        ]
    what = SITES.get(site, "an unknown site")
    if site not in widths:
        offered = ", ".join(widths)
        return [f"the loaded model offers no site {site!r} ({what}); it offers {offered}"]
    if claim.d_in == widths[site]:
        return []
    fitting = [name for name, width in widths.items() if width == claim.d_in]
    return [
        f"the SAE reads {claim.d_in} values per token; {what} has {widths[site]} in this model"
        + (f", and the width of {', '.join(fitting)} would fit" if fitting else "")
    ]


def _warnings(claim: Claim, layer: int, model_names: tuple[str, ...]) -> list[str]:
    warned: list[str] = []
    if claim.layer is not None and claim.layer != layer:
        warned.append(f"the SAE was trained on layer {claim.layer}, not {layer}")
    if claim.model_name and not any(_same_family(claim.model_name, n) for n in model_names):
        loaded = " or ".join(map(ascii, dict.fromkeys(model_names))) or "another"
        trained = ascii(claim.model_name)
        warned.append(f"the SAE was trained on {trained}; the name of the loaded model is {loaded}")
    if claim.site is None and not claim.hook_name:
        warned.append(
            "the SAE does not say where it reads; it is attached to the residual stream after the layer"
        )
    return warned


# ---------------------------------------------------------------- names of models

_TOKEN = re.compile(r"\d+(?:\.\d+)?[bm](?![a-z])|\d+(?:\.\d+)*|[a-z]+")
_SEPARATORS = re.compile(r"[-_. ]+")
_UNDERSCORED = re.compile(r"(?<=\d)_(?=\d+(?![\d.]*[bm]))")
_SAYS_LITTLE = frozenset(
    "instruct it chat base pt hf meta model gguf awq gptq bnb fp bf int bit q k s m l xs v".split()
)
_FIRST_OF_THEIR_NAME = frozenset({"gemma", "llama", "qwen", "olmo"})
_SIZE_WORDS = frozenset({"small", "medium", "large", "xl", "mini", "tiny"})


def _same_family(claimed: str, name: str) -> bool:
    """Whether two names may mean one model: they are equal but for owner, letter case and separators, or every word,
    version and size of one name is in the other too. Words for tuning and storage do not count."""
    if _plain(claimed) == _plain(name) != "":
        return True
    a, b = _said(claimed), _said(name)
    words = {token for token in a & b if token.isalpha()}
    return bool(words) and (a <= b or b <= a)


def _plain(name: str) -> str:
    """A model's name without its owner, in lower case, with one kind of separator."""
    return _SEPARATORS.sub("-", name.strip().lower().rstrip("/").rpartition("/")[2])


def _said(name: str) -> frozenset[str]:
    """The words, versions and sizes in the name of a model, without its owner."""
    text = _UNDERSCORED.sub(".", name.lower().rstrip("/").rpartition("/")[2])
    tokens = {token for token in _TOKEN.findall(text) if token not in _SAYS_LITTLE}
    versions = {token for token in tokens if token[0].isdigit() and token[-1].isdigit()}
    if tokens & _FIRST_OF_THEIR_NAME and not versions:
        tokens.add("1")
    if {"gpt", "2"} <= tokens and not tokens & _SIZE_WORDS:
        tokens.add("small")
    return frozenset(tokens)
