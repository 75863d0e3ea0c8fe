"""Numbers of answers as arrays. This module imports numpy, so it is imported when the first array is asked for."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steerserve.client import shown

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError:
    text = 'numpy is not installed: pip install "steerserve[arrays]"'
    raise ImportError(text) from None


Matrix = NDArray[np.float64]


def matrix(rows: Sequence[Sequence[float | None]]) -> Matrix:
    """Numbers as an array [rows, columns], with NaN for None."""
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class StrongFeature:
    """A feature with its largest activation in a text, and the position and the token where it is."""

    index: int
    label: str | None
    activation: float
    position: int
    token: str | None


NO_BLOCK: Mapping[str, Any] = {"sae_id": "", "layer": -1, "positions": []}
"""The block of an answer without SAE activations."""


class Activations:
    """The SAE activations of an answer, and the values of sites of the model that it has.

    `activations[4711]` are the activations of a feature, and `activations["resid_post", 14]` the values of a site of a
    layer; the layer of the logits is None. Where the answer has several choices, the number of the choice may follow:
    `["resid_post", 14, 1]`.

    Attributes:
        sae_id: the SAE that was read, attached at `layer`; empty where the request read no SAE.
        read_point: `post_steering`, `pre_steering` or `unsteered`.
        positions: the positions that were read, counted from the beginning of the prompt: int64 [n].
        token_ids: the tokens there: int64 [n].
        texts: the texts of these tokens; None where the answer has none.
        features: the indices of all features that are listed anywhere, in ascending order: int64 [k].
        values: the activations: float32 [n, k]; NaN where the answer does not list a feature at a position, which
            means that it is 0 or not among the strongest there.
        labels: the labels of features that have one.
        sites: the choice, the site and the layer of each value of a site that the answer has.
        raw: the block of the answer.
    """

    def __init__(
        self,
        raw: Mapping[str, Any] | None,
        texts: Sequence[str] | None,
        sites: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        raw = NO_BLOCK if raw is None else raw
        self._sites = {(one.get("choice", 0), one["site"], one["layer"]): one for one in sites}
        self.sites = list(self._sites)
        read = raw["positions"]
        self.raw = raw
        self.sae_id: str = raw["sae_id"]
        self.layer: int = raw["layer"]
        self.read_point: str | None = raw.get("read_point")
        self.positions: NDArray[np.int64] = np.array([one["position"] for one in read], np.int64)
        self.token_ids: NDArray[np.int64] = np.array([one["token_id"] for one in read], np.int64)
        listed = [(row, one) for row, place in enumerate(read) for one in place["features"]]
        self.features: NDArray[np.int64] = np.unique(
            np.array([one["index"] for _, one in listed], np.int64)
        )
        self.values: NDArray[np.float32] = np.full(
            (len(read), len(self.features)), np.nan, np.float32
        )
        column = {int(index): at for at, index in enumerate(self.features)}
        for row, one in listed:
            self.values[row, column[one["index"]]] = one["value"]
        self.labels: dict[int, str] = {
            one["index"]: one["label"] for _, one in listed if "label" in one
        }
        own = [one.get("text") for one in read]
        self.texts = list(texts) if texts is not None else own if all(own) else None

    def __getitem__(
        self, feature: int | tuple[str, int | None] | tuple[str, int | None, int]
    ) -> NDArray[np.float32]:
        """The activations of one feature at all positions: float32 [n]; or the values of a site: float32
        [positions, width], or [positions, heads, width of a head or keys].

        Raises:
            KeyError: the answer lists the feature nowhere, or does not have the site.
        """
        if isinstance(feature, tuple):
            return _values(self._site(*feature))
        at = np.flatnonzero(self.features == feature)
        if not len(at):
            raise KeyError(feature)
        return self.values[:, int(at[0])]

    def positions_at(self, site: str, layer: int | None, choice: int = 0) -> NDArray[np.int64]:
        """The positions whose values a site has, counted from the beginning of the prompt: int64 [positions].

        Raises:
            KeyError: the answer does not have the site.
        """
        return np.array(self._site(site, layer, choice)["positions"], np.int64)

    def _site(self, site: str, layer: int | None, choice: int = 0) -> Mapping[str, Any]:
        return self._sites[choice, site, layer]

    def strongest(self, top: int = 10) -> list[StrongFeature]:
        """The features with the largest activations, the largest first. The first position of a text is left out,
        because SAEs are not trained on it."""
        rows = np.flatnonzero(self.positions > 0)
        if not self.values[rows].size:
            return []
        read = np.nan_to_num(self.values[rows], nan=-np.inf)
        largest, where = read.max(axis=0), rows[read.argmax(axis=0)]
        chosen = np.argsort(-largest, kind="stable")[:top]
        return [
            StrongFeature(
                index=int(self.features[at]),
                label=self.labels.get(int(self.features[at])),
                activation=float(largest[at]),
                position=int(self.positions[where[at]]),
                token=None if self.texts is None else self.texts[where[at]],
            )
            for at in chosen
            if np.isfinite(largest[at])
        ]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each position and a column for each feature.

        Raises:
            ImportError: pandas is not installed.
        """
        rows: list[dict[str, object]] = []
        for at in range(len(self.positions)):
            row: dict[str, object] = {
                "position": int(self.positions[at]),
                "token_id": int(self.token_ids[at]),
            }
            if self.texts is not None:
                row["text"] = self.texts[at]
            row |= {str(i): float(v) for i, v in zip(self.features, self.values[at], strict=True)}
            rows.append(row)
        return shown.frame(rows)

    def _repr_html_(self) -> str:
        return shown.tokens(
            [
                (
                    f"{token} " if self.texts is None else self.texts[row],
                    {
                        f"{one['index']} {one.get('label', '')}".strip(): one["value"]
                        for one in place["features"]
                    },
                )
                for row, (token, place) in enumerate(
                    zip(self.token_ids, self.raw["positions"], strict=True)
                )
            ]
        )

    def __repr__(self) -> str:
        if not self.sae_id:
            return f"Activations({len(self.sites)} sites)"
        return f"Activations({self.sae_id} at layer {self.layer}, values {self.values.shape})"


def _values(site: Mapping[str, Any]) -> NDArray[np.float32]:
    """The numbers of an entry of `activations_raw`."""
    data, shape = site["data"], site["shape"]
    if not isinstance(data, str):
        return np.array(data, np.float32).reshape(shape)
    held = base64.b64decode(data)
    if site["dtype"] == "bfloat16":
        wide = np.frombuffer(held, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    kind = {"float32": "<f4", "float16": "<f2"}[site["dtype"]]
    return np.frombuffer(held, kind).astype(np.float32).reshape(shape)


def vectors(raw: Mapping[str, Any]) -> NDArray[np.float32]:
    """The vectors of an answer of `/v1/embeddings`: float32 [texts, width]."""
    return np.array([entry["embedding"] for entry in raw["data"]], np.float32)
