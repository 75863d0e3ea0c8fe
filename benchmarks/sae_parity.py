"""Compares our numbers with those of the libraries in which SAEs are published: `python -m benchmarks.sae_parity`.

The script makes an environment that shares the project's PyTorch and adds SAELens, dictionary_learning and sparsify. It
fetches about 150 MB; `--environment DIR` keeps the environment. It writes a small random checkpoint in the layout of
every format, and lets both sides encode and decode the same inputs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.worker.sae import checkpoints as disk

from benchmarks import sae_libraries
from benchmarks.environments import environment
from benchmarks.kept import Kept
from steerserve.errors import Refusal
from steerserve.messages import Overrides, SaeSource
from steerserve.worker.sae import formats

LIBRARIES = ("sae-lens==6.54.12",)
WITHOUT_DEPENDENCIES = ("dictionary-learning==0.1.0", "eai-sparsify==1.3.3", "natsort==8.4.0")
"""Their maths need what is there already; training, which they also do, would need much more."""

ROWS = 64
TOLERANCE = 1e-5
C = 4 / 17.125
"""sqrt(d_in) by the average norm that the Llama Scope checkpoint's configuration holds."""


@dataclass(frozen=True, slots=True)
class Case:
    """One checkpoint and who reads it.

    Attributes:
        format: whose format it is.
        variant: what is special about this one.
        library: the library to compare with.
        write: lays it out in a folder; None where the library itself writes it.
        job: what the library needs: its loader, or its module and class.
        overrides: what an operator would tell us.
        note: what a reader of the table should know.
        tolerance: the greatest difference, absolute and relative, that counts as none.
    """

    format: str
    variant: str
    library: str
    write: Callable[[Path], disk.Written] | None
    job: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    tolerance: float = TOLERANCE


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: greatest absolute differences over all inputs, or why there are none."""

    format: str
    variant: str
    library: str
    encode: float | None = None
    decode: float | None = None
    l0: float | None = None
    agrees: bool | None = None
    theirs: str | None = None
    ours: str | None = None
    note: str | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, help="where to make it, or where it is")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/<time>.json")
    given = parser.parse_args()
    kept = Kept("sae-parity", given.out)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.environment or Path(scratch) / "environment"
        python = environment(folder, LIBRARIES, WITHOUT_DEPENDENCIES)
        rows = compared(python, Path(scratch))
    print("\n".join(table(rows)))
    found = {
        "libraries": [*LIBRARIES, *WITHOUT_DEPENDENCIES[:2]],
        "inputs": {"rows": ROWS, "d_in": disk.D_IN, "d_sae": disk.D_SAE, "dtype": "float32"},
        "tolerance": TOLERANCE,
        "rows": [asdict(row) for row in rows],
    }
    kept.end({"sae_parity": found})
    sys.exit(any(row.agrees is False for row in rows))


# ---------------------------------------------------------------- both sides


def compared(python: Path, scratch: Path) -> list[Row]:
    """Lay out every case, let the libraries compute, then compute ourselves."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, disk.D_IN)).astype(np.float32) * 3 + 0.5
    np.save(scratch / "x.npy", x)
    jobs, sources = [], []
    for number, case in enumerate(CASES):
        job, source = laid_out(case, scratch / f"case{number}")
        jobs.append(job)
        sources.append(source)
    (scratch / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run([python, sae_libraries.__file__, scratch], check=True, stdout=sys.stderr)
    reasons = json.loads((scratch / "reasons.json").read_text())
    rows = []
    for number, (case, source) in enumerate(zip(CASES, sources, strict=True)):
        answer = scratch / f"{number}.npz"
        rows.append(row(case, source, torch.from_numpy(x), answer, reasons.get(str(number))))
    return rows


def laid_out(case: Case, root: Path) -> tuple[dict[str, Any], SaeSource]:
    job = {"library": case.library, "root": str(root), **case.job}
    overrides = Overrides(**case.overrides)
    if case.write is None:
        name = f"someone/trained/{job['inside']}"
        return job, SaeSource(str(root / job["inside"]), name, overrides)
    written = case.write(root)
    job = {"repository": written.repository, "inside": written.inside, **job}
    return job, SaeSource(str(written.path), written.name, overrides)


def row(case: Case, source: SaeSource, x: torch.Tensor, answer: Path, reason: str | None) -> Row:
    heading = {"format": case.format, "variant": case.variant, "library": case.library}
    try:
        with torch.inference_mode():
            ours = [part.numpy() for part in formats.load(source).reconstruct(x)]
    except Refusal as refusal:
        return Row(**heading, theirs=reason, ours=f"refused: {refusal.message}", note=case.note)
    l0 = float((ours[0] != 0).sum(-1).mean())
    if reason is not None:
        return Row(**heading, theirs=reason, l0=l0, note=case.note)
    with np.load(answer) as found:
        theirs = [found["features"], found["x_hat"]]
    encode, decode = (float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    agrees = all(np.allclose(a, b, TOLERANCE, TOLERANCE) for a, b in zip(ours, theirs, strict=True))
    return Row(**heading, encode=encode, decode=decode, l0=l0, agrees=agrees, note=case.note)


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| format | variant | library | encode | decode | L0 | |"
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        numbers = [f"{n:.1e}" if n is not None else "" for n in (r.encode, r.decode)]
        l0 = f"{r.l0:.1f}" if r.l0 is not None else ""
        theirs = f"{r.library} cannot load it: {r.theirs}" if r.theirs else None
        verdict = None if r.agrees is None else "equal" if r.agrees else "DIFFERENT"
        said = "; ".join(part for part in (verdict, r.ours, theirs, r.note) if part)
        cells = (r.format, r.variant, r.library, *numbers, l0, said.replace("|", "\\|"))
        yield f"| {' | '.join(cells)} |"


# ---------------------------------------------------------------- the cases

DISK = {"loader": "sae_lens_disk_loader"}
SHAPE = {"cfg": {"d_in": disk.D_IN, "d_sae": disk.D_SAE}}
"""SAELens takes these from its table of published SAEs."""


def written(
    format: str,
    variant: str,
    write: Callable[..., disk.Written],
    job: dict[str, Any],
    library: str = "sae-lens",
    note: str | None = None,
    ours: dict[str, Any] | None = None,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> Case:
    def lay_out(root: Path) -> disk.Written:
        return write(root, **options)

    return Case(format, variant, library, lay_out, job, ours or {}, note, tolerance)


def trained(architecture: str, **fields: Any) -> Case:
    """What SAELens itself saves after a training."""
    told = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "k")
    job = {**DISK, "inside": "trained", "make": {"architecture": architecture, **fields}}
    variant = f"{architecture}, saved by SAELens" + (f", {told}" if told else "")
    return Case("SAELens 6", variant, "sae-lens", None, job)


def of_class(name: str, module: str | None, note: str | None = None, **cfg: Any) -> Iterator[Case]:
    """A dictionary_learning class, beside SAELens and beside the library itself."""
    loader = {"loader": "dictionary_learning_sae_huggingface_loader_1"}
    arguments = {"dict_class": name}
    format = "dictionary_learning"
    yield written(format, name, disk.dictionary_learning, loader, **arguments)
    if module is not None:
        job = {"module": module, "class": name, "cfg": cfg}
        library = "dictionary-learning"
        yield written(format, name, disk.dictionary_learning, job, library, note, **arguments)


def cases() -> Iterator[Case]:
    for kind in ("standard", "gated", "jumprelu", "topk"):
        for norm in ("none", "layer_norm", "constant_norm_rescale"):
            for subtracts in (False, True):
                variant = f"{kind}, {norm}" + (", subtracts b_dec" if subtracts else "")
                options = {"normalize_activations": norm, "apply_b_dec_to_input": subtracts}
                yield written("SAELens 6", variant, disk.saelens, DISK, kind=kind, **options)
    for kind in ("topk", "abstopk"):
        options = {"kind": kind, "rescale_acts_by_decoder_norm": True}
        yield written("SAELens 6", f"{kind}, rescaled", disk.saelens, DISK, **options)
    hook = {"hook_name": "blocks.1.attn.hook_z", "reshape_activations": "hook_z"}
    yield written("SAELens 6", "jumprelu, hook_z", disk.saelens, DISK, kind="jumprelu", **hook)
    for kind in ("standard", "gated", "jumprelu"):
        yield trained(kind)
    for kind in ("topk", "abstopk", "batchtopk"):
        for rescaled in (False, True):
            yield trained(kind, k=5, rescale_acts_by_decoder_norm=rescaled)
    yield trained("matryoshka_batchtopk", k=5, matryoshka_widths=[16, 64])
    yield trained("matching_pursuit")
    yield from older()
    yield from scopes()
    yield from of_class("AutoEncoder", "dictionary", normalize_decoder=False)
    yield from of_class("AutoEncoderNew", "dictionary")
    yield from of_class("GatedAutoEncoder", "dictionary")
    yield from of_class("JumpReluAutoEncoder", "dictionary")
    yield from of_class("AutoEncoderTopK", "trainers.top_k")
    yield from of_class("BatchTopKSAE", "trainers.batch_top_k")
    yield from of_class("MatryoshkaBatchTopKSAE", "trainers.matryoshka_batch_top_k")
    for variant, options in (("topk", {}), ("groupmax", {"activation": "groupmax", "k": 8})):
        for library in ("sae-lens", "eai-sparsify"):
            job = {"loader": "sparsify_disk_loader"}
            yield written("sparsify", variant, disk.sparsify, job, library, **options)


def older() -> Iterator[Case]:
    format, write = "SAELens before 6", disk.saelens_older
    topk = {"activation_fn": "topk", "activation_fn_kwargs": {"k": disk.K}}
    yield written(format, "b_dec subtracted by default", write, DISK)
    yield written(format, "b_dec not subtracted", write, DISK, apply_b_dec_to_input=False)
    yield written(format, "topk", write, DISK, **topk)
    yield written(
        format, "topk, layer norm", write, DISK, normalize_activations="layer_norm", **topk
    )
    for kind in ("jumprelu", "gated"):
        yield written(format, kind, write, DISK, kind=kind, architecture=kind)
    job, told = {**DISK, "norm_factor": 0.25}, {"norm_factor": 0.25}
    factor = {"normalize_activations": True, "ours": told, "note": "the factor is given to both"}
    yield written(format, "expected average norm", write, job, **factor)


def scopes() -> Iterator[Case]:
    """Formats of single projects."""
    job = {"loader": "gemma_2_sae_huggingface_loader", **SHAPE}
    for kind in ("res", "mlp", "att"):
        yield written("Gemma Scope", kind, disk.gemma_scope, job, kind=kind)
    inside = "embedding/width_4k/average_l0_6"
    yield written("Gemma Scope", "embedding", disk.gemma_scope, job, inside=inside)
    job = {"loader": "gemma_3_sae_huggingface_loader"}
    for kind in ("resid_post", "attn_out", "mlp_out"):
        yield written("Gemma Scope 2", kind, disk.gemma_scope_2, job, kind=kind)
    without = {"has_config": False}
    yield written("Gemma Scope 2", "without config.json", disk.gemma_scope_2, job, **without)
    job = {"loader": "llama_scope_sae_huggingface_loader", "norm_factor": C}
    yield written("Llama Scope", "float32", disk.llama_scope, job)
    note = "stored in bfloat16; theirs is asked for float32"
    half = {"dtype": torch.bfloat16, "note": note}
    yield written("Llama Scope", "bfloat16", disk.llama_scope, job, **half)
    job = {"loader": "llama_scope_r1_distill_sae_huggingface_loader", "norm_factor": 0.37}
    given = {"ours": {"norm_factor": 0.37}, "note": "the factor is given to both"}
    yield written("Llama Scope R1-Distill", "factor given", disk.llama_scope_r1, job, **given)
    job = {"loader": "get_goodfire_huggingface_loader", **SHAPE}
    yield written("Goodfire", "", disk.goodfire, job)
    job = {"loader": "deepseek_r1_sae_huggingface_loader", **SHAPE}
    yield written("qresearch", "float32", disk.qresearch, job, dtype=torch.float32)
    job = {"loader": "qwen_scope_sae_huggingface_loader", **SHAPE}
    yield written("Qwen Scope", "", disk.qwen_scope, job)
    job = {"loader": "connor_rob_hook_z_huggingface_loader"}
    yield written("attention SAEs", "", disk.attention, job)


CASES = tuple(cases())

if __name__ == "__main__":
    main()
