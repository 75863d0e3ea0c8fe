"""Weights files that lie, break off, or would run code: a table of them, and the writers that make them."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from steerserve.rules.bounds import ARCHIVE_ENTRIES
from steerserve.rules.units import MIB

Writer = Callable[[Path], None]


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


class Calls:
    """Unpickles as a call of `eval`, which would leave a sentinel behind."""

    def __init__(self, sentinel: Path) -> None:
        self._code = f"open({str(sentinel)!r}, 'w').close()"

    def __reduce__(self) -> Any:
        return eval, (self._code,)


def calling(path: Path) -> dict[str, Any]:
    return {"W_dec": torch.ones(4, 4), "run": Calls(sentinel_of(path))}


def sentinel_of(path: Path) -> Path:
    return path.with_name("sentinel")


def zipped(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, body in entries.items():
            archive.writestr(name, body)


def npy(shape: str, dtype: str = "<f4", body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode() + body


def header_only(
    header: dict[str, Any] | str, body: bytes = b"", length: int | None = None
) -> Writer:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()

    def write(path: Path) -> None:
        size = len(text) if length is None else length
        path.write_bytes(struct.pack("<Q", size) + text + body)

    return write


def entry(shape: Any, begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def patched(path: Path, signature: bytes, offset: int, value: bytes) -> None:
    """Overwrite a field of every zip record that begins so."""
    raw = bytearray(path.read_bytes())
    at = raw.find(signature)
    assert at >= 0
    while at >= 0:
        raw[at + offset : at + offset + len(value)] = value
        at = raw.find(signature, at + 4)
    path.write_bytes(bytes(raw))


def cut(writer: Writer, share: float) -> Writer:
    def write(path: Path) -> None:
        writer(path)
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * share)])

    return write


def of_bytes(raw: bytes) -> Writer:
    return lambda path: path.write_bytes(raw) and None  # type: ignore[return-value]


def npz_of(compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Writer:
    return lambda path: zipped(path, {f"{n}.npy": b for n, b in entries.items()}, compression)


def npz_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, W_dec=np.array([Calls(sentinel_of(path))], dtype=object))


def npz_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(calling(path)))


def npz_bomb(path: Path) -> None:
    """80 MiB of zeros in 80 KB."""
    count = 20 * MIB
    zipped(
        path,
        {"W_dec.npy": npy(f"({count},)", body=bytes(4 * count))},
        zipfile.ZIP_DEFLATED,
    )


def npz_liar(path: Path) -> None:
    """The directory and the header agree on more than the compressed stream holds."""
    zipped(path, {"W_dec.npy": npy("(1000,)", body=bytes(400))}, zipfile.ZIP_DEFLATED)
    patched(path, b"PK\x01\x02", 24, struct.pack("<I", len(npy("(1000,)")) + 4000))


def npz_two_sizes(path: Path) -> None:
    zipped(path, {"W_dec.npy": npy("(4,)", body=bytes(16))})
    patched(path, b"PK\x01\x02", 24, struct.pack("<I", 1 << 30))


def npz_ending_early(path: Path) -> None:
    """Directory and header agree on 1 GiB, stored."""
    body = npy(f"({1 << 28},)")
    size = struct.pack("<I", len(body) + (1 << 30))
    zipped(path, {"W_dec.npy": body})
    patched(path, b"PK\x01\x02", 20, size + size)


def npz_overlapping(path: Path) -> None:
    zipped(path, {f"W_{n}.npy": npy("(4,)", body=bytes(16)) for n in "ab"})
    patched(path, b"PK\x01\x02", 42, struct.pack("<I", 0))


def npz_of_one_name(path: Path) -> None:
    zipped(path, {f"W_{n}.npy": npy("(4,)", body=bytes(16)) for n in "ab"})
    path.write_bytes(path.read_bytes().replace(b"W_b.npy", b"W_a.npy"))


def npz_of_many(path: Path) -> None:
    zipped(path, {f"{n}.npy": b"" for n in range(ARCHIVE_ENTRIES + 1)})


def npz_with_huge_directory(path: Path) -> None:
    """The end record says that the directory takes 3 GiB, in a file that has a hole of that size."""
    zipped(path, {"W_dec.npy": npy("(4,)", body=bytes(16))})
    raw = path.read_bytes()
    end = raw.rindex(b"PK\x05\x06")
    size = 3 << 30
    record = raw[end : end + 12] + struct.pack("<II", size, 0) + raw[end + 20 :]
    with path.open("wb") as file:
        file.seek(size)
        file.write(record)


def npz_encrypted(path: Path) -> None:
    zipped(path, {"W_dec.npy": npy("(4,)", body=bytes(16))})
    patched(path, b"PK\x01\x02", 8, b"\x01\x00")


def npz_wrong_checksum(path: Path) -> None:
    zipped(path, {"W_dec.npy": npy("(4,)", body=b"0123456789abcdef")})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"0123456789abcdef", b"0123456789abcdeX"))


def torch_calling(path: Path) -> None:
    torch.save(calling(path), path)


def torch_legacy_calling(path: Path) -> None:
    torch.save(calling(path), path, _use_new_zipfile_serialization=False)


def plain_pickle(protocol: int) -> Writer:
    def write(path: Path) -> None:
        path.write_bytes(pickle.dumps(calling(path), protocol))

    return write


def torch_script(path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


def torch_module(path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), path)


def torch_with(pickled: bytes, compression: int = zipfile.ZIP_STORED, **data: bytes) -> Writer:
    entries = {"a/data.pkl": pickled, "a/byteorder": b"little", "a/version": b"3\n"}
    entries |= {f"a/data/{key}": body for key, body in data.items()}
    return lambda path: zipped(path, entries, compression)


def pickled_tensor(shape: tuple[int, ...], stride: tuple[int, ...], numel: int) -> bytes:
    """A dict of one float32 tensor in storage "0", as `torch.save` pickles it."""

    class Storage:
        pass

    class Tensor:
        def __reduce__(self) -> Any:
            arguments = (Storage(), 0, shape, stride, False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    class Pickler(pickle._Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, Storage):
                return ("storage", torch.FloatStorage, "0", "cpu", numel)
            return None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"W_dec": Tensor()})
    return buffer.getvalue()


def torch_expanded(path: Path) -> None:
    torch.save({"W_dec": torch.ones(1).expand(1 << 20, 1 << 20)}, path)


def torch_many_aliases(path: Path) -> None:
    tensor = torch.ones(64, 1024)
    torch.save({f"W_{n}": tensor for n in range(20)}, path)


def torch_itself(path: Path) -> None:
    found: dict[str, Any] = {"W": torch.ones(1)}
    found["again"] = found
    torch.save(found, path)


def torch_laughing(path: Path) -> None:
    """Eight levels of a hundred references each to the same dict: a billion billion values in one kilobyte."""
    found: Any = {"W": 1.0}
    for _ in range(7):
        found = dict.fromkeys(map(str, range(100)), found)
    torch.save(found, path)


def torch_bytearray(path: Path) -> None:
    """PyTorch's own list lets a pickle ask for memory by the gigabyte."""

    class Huge:
        def __reduce__(self) -> Any:
            return bytearray, (1 << 36,)

    torch.save({"W": Huge()}, path)


def torch_long_index(path: Path) -> None:
    torch.save({"W": torch.ones(1), "text": "x" * (5 * MIB)}, path)


def legacy_long_index(path: Path) -> None:
    value = {"W": torch.ones(1), "text": "x" * (5 * MIB)}
    torch.save(value, path, _use_new_zipfile_serialization=False)


def legacy_cut(path: Path) -> None:
    torch.save({"W": torch.ones(64, 64)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-1000])


def good_safetensors(path: Path) -> None:
    save_file({"W_dec": torch.ones(64, 64)}, path)


def good_npz(path: Path) -> None:
    np.savez(path, W_dec=ramp(64, 64))


def good_torch(path: Path) -> None:
    torch.save({"W_dec": torch.ones(64, 64)}, path)


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


FLOATS = b"\x00" * 16


def torch_of(value: Any, **options: Any) -> Writer:
    return lambda path: torch.save(value, path, **options)


def pickles_of(values: int, count: int) -> Writer:
    """An archive of several indices."""
    made = pickle.dumps([[]] * values)
    return lambda path: zipped(path, {f"{number}.pkl": made for number in range(count)})


HOSTILE: dict[str, tuple[str, Writer, str]] = {
    # name: suffix, writer, what the message says
    "pt of many instructions": (".pt", torch_of([None] * 200_000), "instructions"),
    "old pt of many instructions": (
        ".pt",
        torch_of([None] * 200_000, _use_new_zipfile_serialization=False),
        "instructions",
    ),
    "pt of many indices": (".pt", pickles_of(60_000, count=2), "instructions"),
    "empty safetensors": (".safetensors", of_bytes(b""), "is empty"),
    "empty npz": (".npz", of_bytes(b""), "is empty"),
    "empty pt": (".pt", of_bytes(b""), "is empty"),
    "folder": (".safetensors", folder, "not a regular file"),
    "pipe": (".pt", pipe, "not a regular file"),
    "unknown suffix": (".pkl", of_bytes(b"x"), "is not a weights file of a known kind"),
    "text as safetensors": (".safetensors", of_bytes(b"<html>" * 50), "cannot be read"),
    "text as npz": (".npz", of_bytes(b"<html>" * 50), "not a complete zip archive"),
    "text as pt": (".pt", of_bytes(b"<html>" * 50), "cannot be read"),
    "safetensors cut in the header": (".safetensors", cut(good_safetensors, 0.002), "cannot"),
    "safetensors cut in the weights": (".safetensors", cut(good_safetensors, 0.9), "cannot be"),
    "safetensors of a huge header": (".safetensors", header_only("{}", length=1 << 40), "cannot"),
    "safetensors longer than its header": (
        ".safetensors",
        header_only({"W": entry([4], 0, 16)}, FLOATS + b"more"),
        "cannot be read",
    ),
    "safetensors that overlap": (
        ".safetensors",
        header_only({"W": entry([4], 0, 16), "V": entry([4], 0, 16)}, FLOATS),
        "cannot be read",
    ),
    "safetensors of negative shape": (
        ".safetensors",
        header_only({"W": entry([-4], 0, 16)}, FLOATS),
        "cannot be read",
    ),
    "safetensors of overflowing shape": (
        ".safetensors",
        header_only({"W": entry([1 << 62, 1 << 62], 0, 16)}, FLOATS),
        "cannot be read",
    ),
    "safetensors of another size": (
        ".safetensors",
        header_only({"W": entry([5], 0, 16)}, FLOATS),
        "cannot be read",
    ),
    "safetensors of unknown dtype": (
        ".safetensors",
        header_only({"W": entry([4], 0, 16, "F31")}, FLOATS),
        "cannot be read",
    ),
    "safetensors of complex numbers": (
        ".safetensors",
        header_only({"W": entry([2], 0, 16, "C64")}, FLOATS),
        "as C64",
    ),
    "safetensors with a deep header": (".safetensors", header_only("[" * 100_000), "cannot be"),
    "safetensors of a large header": (
        ".safetensors",
        header_only({"__metadata__": {"a": "b" * (5 << 20)}}),
        "header larger",
    ),
    "npz with objects": (".npz", npz_objects, "as object"),
    "npz that is a pickle": (".npz", npz_pickle, "not a complete zip archive"),
    "npz bomb": (".npz", npz_bomb, "out of proportion"),
    "npz that stores less than it declares": (".npz", npz_liar, ""),
    "npz of two sizes": (".npz", npz_two_sizes, "two sizes"),
    "npz that ends early": (".npz", npz_ending_early, "ends before its last entry"),
    "npz that overlaps": (".npz", npz_overlapping, "overlap"),
    "npz of one name twice": (".npz", npz_of_one_name, "two entries of one name"),
    "npz of many entries": (".npz", npz_of_many, "more than 10000"),
    "npz of a huge directory": (".npz", npz_with_huge_directory, "index too large"),
    "npz encrypted": (".npz", npz_encrypted, "encrypted"),
    "npz of bzip2": (
        ".npz",
        npz_of(zipfile.ZIP_BZIP2, W=npy("(4,)", body=FLOATS)),
        "unknown compression",
    ),
    "npz of wrong checksum": (".npz", npz_wrong_checksum, "cannot be read"),
    "npz cut": (".npz", cut(good_npz, 0.9), "not a complete zip archive"),
    "npz of no array": (".npz", lambda p: zipped(p, {"a.txt": b"x"}), "is not an array"),
    "npz of negative shape": (".npz", npz_of(W=npy("(-4,)", body=FLOATS)), "shape [-4]"),
    "npz of two negatives": (".npz", npz_of(W=npy("(-2, -2)", body=FLOATS)), "shape [-2, -2]"),
    "npz of overflowing shape": (
        ".npz",
        npz_of(W=npy(f"({1 << 62}, 4)", body=FLOATS)),
        "stores another number",
    ),
    "npz of many axes": (".npz", npz_of(W=npy("(1,) * 9")), "cannot be read"),
    "npz of sixty axes": (".npz", npz_of(W=npy(f"({'1, ' * 60})", body=b"0000")), "the shape"),
    "npz of a shape that is code": (
        ".npz",
        npz_of(W=npy("__import__('os').abort()")),
        "cannot be read",
    ),
    "npz of a long header": (".npz", npz_of(W=npy("(4,)" + " " * 60_000)), "cannot be read"),
    "npz of structures": (".npz", npz_of(W=npy("(4,)", "V4", FLOATS)), "which is not read"),
    "npz of complex numbers": (".npz", npz_of(W=npy("(2,)", "<c8", FLOATS)), "not read"),
    "npz of unknown version": (
        ".npz",
        npz_of(W=npy("(4,)", body=FLOATS, version=b"\x03\x00")),
        "header of version (3, 0)",
    ),
    "npz of a long text": (".npz", npz_of(W=npy("()", "<U9999", bytes(4 * 9999))), "a text"),
    "npz of texts": (".npz", npz_of(W=npy("(1,)", "<U4", FLOATS)), "as str128"),
    "pt that calls": (".pt", torch_calling, "calls builtins.eval; nothing was executed"),
    "pth that calls": (".pth", torch_calling, "calls builtins.eval"),
    "legacy pt that calls": (".pt", torch_legacy_calling, "calls builtins.eval"),
    "plain pickle that calls": (".pt", plain_pickle(2), "calls"),
    "plain pickle of protocol 0 that calls": (".bin", plain_pickle(0), "calls"),
    "plain pickle of protocol 5 that calls": (".pt", plain_pickle(5), "calls"),
    "pickle that makes instances": (".pt", of_bytes(b"(S'x'\nios\nsystem\n."), "calls more"),
    "tar": (".pt", of_bytes(b"ustar".rjust(262, b"a") + bytes(2000)), "cannot be read"),
    "torch script": (".pt", torch_script, "calls __torch__"),
    "torch module": (".pt", torch_module, "calls torch.nn.modules.linear.Linear"),
    "pt that asks for memory": (".pt", torch_bytearray, "calls builtins.bytearray"),
    "pt expanded": (".pt", torch_expanded, "and stores"),
    "pt of many aliases": (".pt", torch_many_aliases, "declares"),
    "pt that holds itself": (".pt", torch_itself, "nests more than"),
    "pt of a billion references": (".pt", torch_laughing, "nests more than"),
    "pt of a long index": (".pt", torch_long_index, "has an index larger"),
    "legacy pt of a long index": (".pt", legacy_long_index, "index too large"),
    "pt of no dict": (".pt", lambda p: torch.save([torch.ones(1)], p), "holds a list"),
    "pt of one tensor": (".pt", lambda p: torch.save(torch.ones(1), p), "holds a Tensor"),
    "pt with odd keys": (".pt", lambda p: torch.save({(1, 2): torch.ones(1)}, p), "a key"),
    "pt of complex numbers": (
        ".pt",
        lambda p: torch.save({"W": torch.ones(1, dtype=torch.cfloat)}, p),
        "calls torch.ComplexFloatStorage",
    ),
    "pt sparse": (
        ".pt",
        lambda p: torch.save({"W": torch.eye(3).to_sparse()}, p),
        "calls torch._utils._rebuild_sparse_tensor",
    ),
    "pt cut": (".pt", cut(good_torch, 0.9), "not a complete zip archive"),
    "legacy pt cut": (".pt", legacy_cut, ""),
    "zip of no index": (".pt", lambda p: zipped(p, {"a/version": b"3"}), "cannot be read"),
    "pt of compressed entries": (
        ".pt",
        torch_with(pickled_tensor((4,), (1,), 4), zipfile.ZIP_DEFLATED, **{"0": FLOATS}),
        "compressed entry",
    ),
    "pt of a storage that is missing": (
        ".pt",
        torch_with(pickled_tensor((4,), (1,), 4)),
        "cannot be read",
    ),
    "pt of a storage beyond the file": (
        ".pt",
        torch_with(pickled_tensor((1 << 20,), (1,), 1 << 20), **{"0": FLOATS}),
        "",
    ),
    "pt of negative shape": (
        ".pt",
        torch_with(pickled_tensor((-4,), (1,), 4), **{"0": FLOATS}),
        "cannot be read",
    ),
    "pt of overflowing shape": (
        ".pt",
        torch_with(pickled_tensor((1 << 62, 1 << 62), (0, 0), 4), **{"0": FLOATS}),
        "",
    ),
    "pt of overlapping strides": (
        ".pt",
        torch_with(pickled_tensor((1000, 1000), (0, 0), 4), **{"0": FLOATS}),
        "declares 4000000 bytes of 'W_dec' and stores 16",
    ),
}
