from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.rules.models import repository
from steerserve.rules.models.repository import RepoFile
from tests.refusals import refusal_of

SMALL = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.txt",
    "merges.txt",
    "vocab.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
]
USELESS = [
    "README.md",
    ".gitattributes",
    "trainer_state.json",
    "optimizer.pt",
    "training_args.bin",
    "requirements.txt",
    "original/consolidated.00.pth",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "adapter_config.json",
    "model.fp16.safetensors",
    "onnx/model.onnx",
    "onnx/config.json",
    "1_Pooling/config.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "rust_model.ot",
    "model-q4.gguf",
]
SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
PICKLED = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"]


def listing(*paths: str) -> tuple[RepoFile, ...]:
    return tuple(RepoFile(path, 1) for path in paths)


@pytest.mark.parametrize(
    ("extra", "trust", "chosen"),
    [
        (["model.safetensors"], False, ["model.safetensors"]),
        (
            [*SHARDS, "model.safetensors.index.json"],
            False,
            [*SHARDS, "model.safetensors.index.json"],
        ),
        (["model.safetensors", *PICKLED], False, ["model.safetensors"]),
        (PICKLED, False, PICKLED),
        (["model.safetensors", "modeling_x.py"], False, ["model.safetensors"]),
        (
            ["model.safetensors", "modeling_x.py", "sub/evil.py"],
            True,
            ["model.safetensors", "modeling_x.py"],
        ),
    ],
)
def test_a_checkpoint_is_one_format_of_weights_and_what_reads_them(
    extra: list[str], trust: bool, chosen: list[str]
) -> None:
    files = listing(*SMALL, *USELESS, *extra)
    found = repository.checkpoint_files(files, trust_remote_code=trust)
    assert [file.path for file in found] == [*SMALL, *chosen]


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["config.json"], "no weights"),
        (["adapter_model.safetensors", "sub/model.safetensors"], "no weights"),
        (["config.json", "tiny-Q4_K_M.gguf"], "gguf_label"),
    ],
)
def test_a_repository_without_weights_is_refused(paths: list[str], said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        repository.checkpoint_files(listing(*paths), trust_remote_code=True)
    assert refused.value.code == "DOWNLOAD_FAILED"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../b",
        "a/..",
        "./a",
        "a//b",
        "a/",
        "",
        "..\\..\\x",
        "a\\b",
        "a\x00b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "a\ud800b",
        "x" * 256,
        "ü" * 128,
        "/".join(["x" * 99] * 11),
        "/".join("a" * 33),
        "a\u202ecod.json",
        "a\u2028b",
        "\u2066x",
        "ü" * 501,
        "é" * 128,
    ],
)
def test_a_hostile_listing_is_refused_whole(path: str) -> None:
    refusal = refusal_of(
        lambda: repository.check_paths([RepoFile("config.json", 2), RepoFile(path, 1)])
    )
    assert refusal.code == "DOWNLOAD_FAILED"
    assert refusal.message.isprintable()
    assert refusal.message.isascii()
    assert len(refusal.message) < 600


@pytest.mark.parametrize(
    "files",
    [
        [RepoFile("a", 1), RepoFile("a", 1)],
        [RepoFile("a", 1), RepoFile("a/b/c", 1)],
        [RepoFile("a/b/c", 1), RepoFile("a/b", 1)],
        [RepoFile("a", -1)],
        [RepoFile("a", 1 << 63)],
    ],
)
def test_a_listing_that_contradicts_itself_is_refused(files: list[RepoFile]) -> None:
    assert refusal_of(repository.check_paths, files).code == "DOWNLOAD_FAILED"


def test_ordinary_paths_are_taken() -> None:
    names = [
        "config.json",
        "a..b",
        "...",
        "Ärger/日本.gguf",
        "A",
        "a b",
        "x" * 255,
        ".gitattributes",
    ]
    repository.check_paths([*listing(*names), RepoFile("a", None), RepoFile("empty", 0)])


@pytest.mark.parametrize(
    "repo_id",
    ["gpt2", "acme/tiny", "01-ai/Yi-1.5-6B", "a_b/c.d-e_f", "Qwen/Qwen2.5-0.5B", "a/" + "b" * 253],
)
def test_names_of_repositories(repo_id: str) -> None:
    assert repository.check_repo_id(repo_id) == repo_id


@pytest.mark.parametrize(
    "repo_id",
    [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        "http://127.0.0.1:9/x",
        "file:///etc",
        "//host/x",
        "a@b",
        "user/..",
        "../x",
        "..%2f",
        "a/b%20",
        "a/b?x",
        "a/b#c",
        "a b/c",
        "a/b\n",
        "a\\b",
        "ü/x",
        "a--b/c",
        "a/b.git",
        "-a/b",
        "a/-b",
        "a/.b",
        "a/b.",
        "a.b/c",
        "a/" + "b" * 254,
    ],
)
def test_what_is_no_name_of_a_repository(repo_id: str) -> None:
    refusal = refusal_of(repository.check_repo_id, repo_id)
    assert (refusal.code, refusal.param) == ("VALIDATION_ERROR", "repo_id")


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/12", "a" * 40, "x" * 100])
def test_revisions(revision: str) -> None:
    assert repository.check_revision(revision) == revision


@pytest.mark.parametrize(
    "revision", ["", "..", "a/../b", "a//b", "/a", "a/", "-x", "a b", "a%2f", "é", "x" * 101, "a\n"]
)
def test_what_is_no_revision(revision: str) -> None:
    refusal = refusal_of(repository.check_revision, revision)
    assert (refusal.code, refusal.param) == ("VALIDATION_ERROR", "revision")


@pytest.mark.parametrize(
    ("sha", "expected"),
    [("a" * 40, True), ("0" * 64, True), ("main", False), ("A" * 40, False), ("a" * 41, False)],
)
def test_commits(sha: str, expected: bool) -> None:
    assert repository.is_commit(sha) is expected
