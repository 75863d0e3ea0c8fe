"""Small SAE checkpoints laid out on disk as each library publishes them: file names, keys, orientations, dtypes.

Every writer takes the folder of a repository, writes one SAE into it, and returns where it lies with the parameters in
canonical orientation, so that the reference can compute with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from steerserve.messages import Overrides, SaeSource
from tests.worker.saes import D_IN, D_SAE, Arrays, K, arrays

__all__ = ["D_IN", "D_SAE", "Arrays", "K", "Written", "arrays", "tensors"]


@dataclass(frozen=True, slots=True)
class Written:
    """One SAE in a repository.

    Attributes:
        root: the repository's folder on disk.
        repository: `owner/name` of the repository.
        inside: the SAE's folder or file within it, "" for the root.
        arrays: W_enc [d_in, d_sae], b_enc, W_dec [d_sae, d_in], b_dec, ... in float32, not folded.
    """

    root: Path
    repository: str
    inside: str
    arrays: Arrays

    @property
    def path(self) -> Path:
        return self.root / self.inside

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.inside}".rstrip("/")

    def source(self, **overrides: Any) -> SaeSource:
        return SaeSource(str(self.path), self.name, Overrides(**overrides))


def tensors(arrays: Arrays, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The arrays as contiguous tensors; whole numbers keep their type."""
    found = {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in found.items()
    }


def linear(
    p: Arrays, encoder: str, decoder: str, encoder_bias: str, decoder_bias: str = ""
) -> Arrays:
    """The matrices as `nn.Linear` keeps them, [out, in], with the names of its parts."""
    found = {encoder: p["W_enc"].T, decoder: p["W_dec"].T, encoder_bias: p["b_enc"]}
    return found | ({decoder_bias: p["b_dec"]} if decoder_bias else {})


def _json(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: v for name, v in value.items() if v is not ...}))


def _safetensors(path: Path, values: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(values, path)


def _torch(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(values, path)


# ---------------------------------------------------------------- SAELens


def saelens(
    root: Path,
    kind: str = "standard",
    *,
    inside: str = "standard/blocks.1.hook_resid_post",
    hook_name: str = "blocks.1.hook_resid_post",
    metadata: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    p: Arrays | None = None,
    **config: Any,
) -> Written:
    """SAELens 6 and later: `cfg.json`, `sae_weights.safetensors`. A field of `...` is left out."""
    p = arrays(kind) if p is None else p
    folder = root / inside
    _json(
        folder / "cfg.json",
        {
            "architecture": kind,
            "d_in": D_IN if "b_dec" not in p else p["b_dec"].shape[0],
            "d_sae": D_SAE if "W_dec" not in p else p["W_dec"].shape[0],
            "dtype": str(dtype).removeprefix("torch."),
            "device": "cpu",
            "apply_b_dec_to_input": False,
            "normalize_activations": "none",
            "reshape_activations": "none",
            "metadata": {
                "sae_lens_version": "6.54.12",
                "sae_lens_training_version": "6.54.12",
                "model_name": "gemma-2-2b",
                "hook_name": hook_name,
                "hook_head_index": None,
                "prepend_bos": True,
                "context_size": 1024,
                "dataset_path": "monology/pile-uncopyrighted",
                **(metadata or {}),
            },
            **(
                {"k": K, "rescale_acts_by_decoder_norm": False}
                if kind in ("topk", "abstopk")
                else {}
            ),
            **config,
        },
    )
    _json(folder / "runner_cfg.json", {"hook_name": "ignore.me", "architecture": "ignored"})
    _safetensors(folder / "sae_weights.safetensors", tensors(p, dtype))
    return Written(root, "chanind/gemma-2-2b-batch-topk-matryoshka-saes-w-32k-l0-40", inside, p)


def saelens_older(
    root: Path,
    kind: str = "standard",
    *,
    repository: str = "jbloom/GPT2-Small-SAEs-Reformatted",
    inside: str = "blocks.8.hook_resid_pre",
    extra: Arrays | None = None,
    **config: Any,
) -> Written:
    """SAELens before 6: flat fields, most of them optional, and a file of feature frequencies."""
    p = arrays(kind)
    folder = root / inside
    _json(
        folder / "cfg.json",
        {
            "model_name": "gpt2-small",
            "hook_point": "blocks.8.hook_resid_pre",
            "hook_point_layer": 8,
            "hook_point_head_index": None,
            "d_in": D_IN,
            "d_sae": D_SAE,
            "dtype": "torch.float32",
            "device": "mps",
            "normalize_activations": None,
            "prepend_bos": True,
            "context_size": 128,
            "finetuning_scaling_factor": False,
            **config,
        },
    )
    _safetensors(folder / "sae_weights.safetensors", tensors(p | (extra or {})))
    _safetensors(folder / "sparsity.safetensors", {"sparsity": torch.zeros(D_SAE)})
    return Written(root, repository, inside, p)


def mistudio(root: Path, kind: str = "jumprelu", **config: Any) -> Written:
    """miStudio's community format: the older fields, with k hidden among the extra ones."""
    p = arrays(kind)
    _json(
        root / "cfg.json",
        {
            "model_name": "gemma-2-2b",
            "hook_point": "blocks.12.hook_resid_post",
            "hook_point_layer": 12,
            "d_in": D_IN,
            "d_sae": D_SAE,
            "dtype": "float32",
            "architecture": "standard" if kind == "topk" else kind,
            "activation_fn_str": {"standard": "relu", "gated": "relu"}.get(kind, kind),
            "normalize_activations": "none",
            "mistudio_training_id": "train_0a1b2c3d",
            "extra_metadata": {"hf_model_name": "google/gemma-2-2b", "top_k_sparsity": K},
            **config,
        },
    )
    _safetensors(root / "sae_weights.safetensors", tensors(p))
    return Written(root, "someone/mistudio-export", "", p)


# ---------------------------------------------------------------- Gemma Scope


def gemma_scope(
    root: Path,
    kind: str = "res",
    *,
    size: str = "2b-pt",
    inside: str = "layer_20/width_16k/average_l0_71",
    lower: bool = False,
    compressed: bool = False,
    p: Arrays | None = None,
) -> Written:
    """Gemma Scope: `params.npz` in float32; layer, width and L0 stand in the path, the site in the repository's name."""
    p = arrays("jumprelu") if p is None else p
    folder = root / inside
    folder.mkdir(parents=True, exist_ok=True)
    save = np.savez_compressed if compressed else np.savez
    save(folder / "params.npz", **{n.replace("W_", "w_") if lower else n: a for n, a in p.items()})
    return Written(root, f"google/gemma-scope-{size}-{kind}", inside, p)


def gemma_scope_2(
    root: Path,
    kind: str = "resid_post",
    *,
    name: str = "layer_12_width_16k_l0_medium",
    has_config: bool = True,
    hook: str = "",
    extra: Arrays | None = None,
    p: Arrays | None = None,
) -> Written:
    """Gemma Scope 2: `params.safetensors` with lower-case names, and a `config.json` that some folders lack."""
    p = arrays("jumprelu") if p is None else p
    inside = f"{kind}/{name}"
    hooks = {
        "resid_post": "model.layers.12.output",
        "attn_out": "model.layers.12.self_attn.o_proj.input",
        "mlp_out": "model.layers.12.post_feedforward_layernorm.output",
        "transcoder": "model.layers.12.pre_feedforward_layernorm.output",
    }
    base = kind.removesuffix("_all")
    if has_config:
        config = {
            "architecture": "jump_relu",
            "model_name": "gemma-v3-1b-pt",
            "hf_hook_point_in": hook or hooks[base],
        }
        if base == "transcoder":
            config["hf_hook_point_out"] = "model.layers.12.post_feedforward_layernorm.output"
        _json(root / inside / "config.json", config)
    stored = {n.replace("W_", "w_"): a for n, a in (p | (extra or {})).items()}
    _safetensors(root / inside / "params.safetensors", tensors(stored))
    return Written(root, "google/gemma-scope-2-1b-pt", inside, p)


# ---------------------------------------------------------------- OpenMOSS


def llama_scope(
    root: Path,
    kind: str = "R",
    *,
    dtype: torch.dtype = torch.float32,
    threshold: float = 0.52734375,
    norms: dict[str, float] | None = None,
    **config: Any,
) -> Written:
    """Llama Scope: `hyperparams.json`, `checkpoints/final.safetensors`, one threshold for every feature."""
    p = arrays()
    inside = f"Llama3_1-8B-Base-L15{kind}-8x"
    hooks = {
        "R": "blocks.15.hook_resid_post",
        "A": "blocks.15.hook_attn_out",
        "M": "blocks.15.hook_mlp_out",
        "TC": "blocks.15.ln2.hook_normalized",
    }
    out = hooks["M"] if kind == "TC" else hooks[kind]
    _json(
        root / inside / "hyperparams.json",
        {
            "d_model": D_IN,
            "d_sae": D_SAE,
            "expansion_factor": D_SAE // D_IN,
            "hook_point_in": hooks[kind],
            "hook_point_out": out,
            "act_fn": "jumprelu",
            "jump_relu_threshold": threshold,
            "norm_activation": "dataset-wise",
            "dataset_average_activation_norm": norms or {"in": 17.125, "out": 17.125},
            "sparsity_include_decoder_norm": True,
            "apply_decoder_bias_to_pre_encoder": False,
            "use_decoder_bias": True,
            "top_k": 50,
            **config,
        },
    )
    _json(root / inside / "lm_config.json", {"model_name": "meta-llama/Llama-3.1-8B"})
    stored = linear(p, "encoder.weight", "decoder.weight", "encoder.bias", "decoder.bias")
    _safetensors(root / inside / "checkpoints" / "final.safetensors", tensors(stored, dtype))
    return Written(root, f"fnlp/Llama3_1-8B-Base-LX{kind}-8x", inside, p)


def llama_scope_r1(root: Path, **config: Any) -> Written:
    """Llama Scope R1-Distill: `config.json`, `sae_weights.safetensors`, logarithms of the thresholds, no norm factor."""
    p = arrays("jumprelu")
    inside = "800M-Slimpajama-0-OpenR1-Math-220k/L15R"
    _json(
        root / inside / "config.json",
        {
            "sae_type": "sae",
            "d_model": D_IN,
            "expansion_factor": D_SAE // D_IN,
            "hook_point_in": "blocks.15.hook_resid_post",
            "hook_point_out": "blocks.15.hook_resid_post",
            "act_fn": "jumprelu",
            "norm_activation": "dataset-wise",
            "sparsity_include_decoder_norm": False,
            "use_decoder_bias": True,
            **config,
        },
    )
    stored = linear(p, "encoder.weight", "decoder.weight", "encoder.bias", "decoder.bias")
    stored["log_jumprelu_threshold"] = np.log(p["threshold"])
    _safetensors(root / inside / "sae_weights.safetensors", tensors(stored))
    return Written(root, "fnlp/Llama-Scope-R1-Distill", inside, p)


def llamascopium(
    root: Path,
    act_fn: str = "jumprelu",
    *,
    norms: dict[str, float] | None = None,
    extra: Arrays | None = None,
    weights: str = "sae_weights.safetensors",
    **config: Any,
) -> Written:
    """OpenMOSS's later layout: W_E, W_D and the average norms beside the weights."""
    p = arrays("jumprelu" if act_fn == "jumprelu" else "standard")
    inside = "qwen3-1.7b-L9-8x"
    hook = "blocks.9.hook_resid_post"
    _json(
        root / inside / "config.json",
        {
            "sae_type": "sae",
            "d_model": D_IN,
            "expansion_factor": D_SAE / D_IN,
            "hook_point_in": hook,
            "hook_point_out": hook,
            "act_fn": act_fn,
            "top_k": K,
            "norm_activation": "inference",
            "sparsity_include_decoder_norm": False,
            "use_decoder_bias": True,
            "use_glu_encoder": False,
            **config,
        },
    )
    stored = {"W_E": p["W_enc"], "b_E": p["b_enc"], "W_D": p["W_dec"], "b_D": p["b_dec"]}
    if "threshold" in p:
        stored["activation_function.log_jumprelu_threshold"] = np.log(p["threshold"])
    for name, value in (norms or {}).items():
        stored[f"dataset_average_activation_norm.{name}"] = np.float32(value)
    _safetensors(root / inside / weights, tensors(stored | (extra or {})))
    return Written(root, "OpenMOSS-Team/llamascopium-qwen3", inside, p)


# ---------------------------------------------------------------- dictionary_learning


def dictionary_learning(
    root: Path,
    dict_class: str = "AutoEncoderTopK",
    *,
    threshold: float = 0.4,
    submodule: str = "resid_post_layer_12",
    repository: str = "canrager/saebench_gemma-2-2b_width-2pow16_date-0107",
    extra: dict[str, Any] | None = None,
    **trainer: Any,
) -> Written:
    """dictionary_learning: `ae.pt` beside `config.json`; names and maths go by the class."""
    p = arrays({"GatedAutoEncoder": "gated", "JumpReluAutoEncoder": "jumprelu"}.get(dict_class, ""))
    inside = f"saebench/{submodule}/trainer_3"
    _json(
        root / inside / "config.json",
        {
            "trainer": {
                "dict_class": dict_class,
                "trainer_class": dict_class.replace("AutoEncoder", "Trainer"),
                "activation_dim": D_IN,
                "dict_size": D_SAE,
                "layer": 12,
                "lm_name": "google/gemma-2-2b",
                "submodule_name": submodule,
                **({"k": K} if "TopK" in dict_class else {}),
                **trainer,
            },
            "buffer": {"d_submodule": D_IN, "io": "out", "ctx_len": 1024},
        },
    )
    _torch(root / inside / "ae.pt", _of_class(dict_class, p, threshold) | (extra or {}))
    return Written(root, repository, inside, p)


def _of_class(dict_class: str, p: Arrays, threshold: float) -> dict[str, Tensor]:
    scalars = {"k": torch.tensor(K), "threshold": torch.tensor(threshold)}
    match dict_class:
        case "AutoEncoder":
            stored = linear(p, "encoder.weight", "decoder.weight", "encoder.bias", "bias")
        case "AutoEncoderNew":
            stored = linear(p, "encoder.weight", "decoder.weight", "encoder.bias", "decoder.bias")
        case "GatedAutoEncoder":
            stored = {"encoder.weight": p["W_enc"].T, "decoder.weight": p["W_dec"].T}
            stored |= {"decoder_bias": p["b_dec"], "r_mag": p["r_mag"]}
            stored |= {"gate_bias": p["b_gate"], "mag_bias": p["b_mag"]}
        case "JumpReluAutoEncoder":
            stored = p
        case "AutoEncoderTopK" | "BatchTopKSAE":
            stored = linear(p, "encoder.weight", "decoder.weight", "encoder.bias", "b_dec")
            return tensors(stored) | scalars
        case "MatryoshkaBatchTopKSAE":
            return tensors(p) | scalars | {"group_sizes": torch.tensor([16, 48])}
        case _:
            stored = p
    return tensors(stored)


# ---------------------------------------------------------------- others


def sparsify(
    root: Path,
    hookpoint: str = "layers.4",
    *,
    dtype: torch.dtype = torch.float32,
    extra: Arrays | None = None,
    p: Arrays | None = None,
    **config: Any,
) -> Written:
    """EleutherAI's sparsify: `cfg.json`, `sae.safetensors` in a folder named as the module."""
    p = arrays() if p is None else p
    _json(root / "config.json", {"model": "EleutherAI/pythia-70m", "ctx_len": 2048, "layers": [4]})
    _json(
        root / hookpoint / "cfg.json",
        {
            "expansion_factor": D_SAE // D_IN,
            "normalize_decoder": True,
            "num_latents": 0,
            "k": K,
            "d_in": D_IN,
            "signed": ...,
            **config,
        },
    )
    stored = {"encoder.weight": p["W_enc"].T, "encoder.bias": p["b_enc"]}
    stored |= {"W_dec": p["W_dec"], "b_dec": p["b_dec"]}
    _safetensors(root / hookpoint / "sae.safetensors", tensors(stored | (extra or {}), dtype))
    return Written(root, "EleutherAI/sae-pythia-70m-32k", hookpoint, p)


def goodfire(root: Path) -> Written:
    p = arrays()
    names = ("encoder_linear.weight", "decoder_linear.weight")
    stored = linear(p, *names, "encoder_linear.bias", "decoder_linear.bias")
    inside = "Llama-3.1-8B-Instruct-SAE-l19.pth"
    _torch(root / inside, tensors(stored))
    return Written(root, "Goodfire/Llama-3.1-8B-Instruct-SAE-l19", inside, p)


def qresearch(root: Path, dtype: torch.dtype = torch.bfloat16) -> Written:
    p = arrays()
    stored = linear(p, "encoder.weight", "decoder.weight", "encoder.bias", "decoder.bias")
    inside = "DeepSeek-R1-Distill-Llama-8B-SAE-l19.pt"
    _torch(root / inside, tensors(stored, dtype))
    return Written(root, "qresearch/DeepSeek-R1-Distill-Llama-8B-SAE-l19", inside, p)


def qwen_scope(
    root: Path, *, layer: int = 7, k: int = K, width: str = "32K", p: Arrays | None = None
) -> Written:
    """Qwen Scope: `layerN.sae.pt`, both matrices transposed under SAELens's names; k stands in the repository's name."""
    p = arrays() if p is None else p
    stored = {**p, "W_enc": p["W_enc"].T, "W_dec": p["W_dec"].T}
    inside = f"layer{layer}.sae.pt"
    _torch(root / inside, tensors(stored))
    return Written(root, f"Qwen/SAE-Res-Qwen3-1.7B-Base-W{width}-L0_{k}", inside, p)


def attention(root: Path, layer: int = 5) -> Written:
    """The attention SAEs of GPT-2 small: a `.pt` and a `_cfg.json` of the same name."""
    p = arrays()
    stem = f"gpt2-small_L{layer}_Hcat_z_lr1.20e-03_l11.80e+00_ds24576_bs4096_dc1.00e-06_rsanthropic_rie25000_nr4_v9"
    _torch(root / f"{stem}.pt", tensors(p))
    _json(
        root / f"{stem}_cfg.json",
        {
            "act_name": f"blocks.{layer}.attn.hook_z",
            "act_size": D_IN,
            "dict_size": D_SAE,
            "enc_dtype": "fp32",
            "model_name": "gpt2-small",
            "site": "z",
            "layer": layer,
        },
    )
    return Written(root, "ckkissane/attn-saes-gpt2-small-all-layers", f"{stem}.pt", p)


def mwhanna(root: Path, config: str = "wanb-config.yaml") -> Written:
    """Transcoders as circuit-tracer reads them: `layer_N.safetensors` beside a YAML configuration."""
    p = arrays()
    stored = {**p, "W_enc": p["W_enc"].T}
    _safetensors(root / "layer_3.safetensors", tensors(stored))
    (root / config).write_text(f"d_model:\n  value: {D_IN}\nd_feature:\n  value: {D_SAE}\n")
    return Written(root, "mwhanna/qwen3-0.6b-transcoders-lowl0", "layer_3.safetensors", p)


def cross_layer(root: Path) -> Written:
    """A cross-layer transcoder: one pair of files for each layer, decoders that write to several."""
    p = arrays()
    encoder = {"W_enc_2": p["W_enc"].T, "b_enc_2": p["b_enc"], "b_dec_2": p["b_dec"]}
    _safetensors(root / "W_enc_2.safetensors", tensors(encoder))
    decoder = {"W_dec_2": np.zeros((D_SAE, 3, D_IN), np.float32)}
    _safetensors(root / "W_dec_2.safetensors", tensors(decoder))
    (root / "config.yaml").write_text("model_name: google/gemma-2-2b\nmodel_kind: cross_layer\n")
    return Written(root, "mntss/clt-gemma-2-2b-2.5M", "", p)


def temporal(root: Path) -> Written:
    p = arrays()
    inside = "gemma-2-2b/layer_12/temporal"
    stored = {"D": p["W_dec"], "E": p["W_enc"].T, "b": p["b_dec"]}
    stored["attn_layers.0.k_ctx.weight"] = np.zeros((4, D_IN), np.float32)
    _safetensors(root / inside / "latest_ckpt.safetensors", tensors(stored))
    (root / inside / "conf.yaml").write_text("llm:\n  dimin: 16\nsae:\n  exp_factor: 4\n")
    return Written(root, "canrager/temporalSAEs", inside, p)


def raw(root: Path, values: Any, inside: str = "sae.pt") -> Written:
    """A dump that says nothing of itself."""
    _torch(root / inside, values)
    return Written(root, "someone/uploads", inside, {})
