from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.rules.models import fetching
from steerserve.rules.models.fetching import FetchTask, Presence, PresentFile, Revision
from steerserve.rules.models.repository import RepoFile

SHA = "0123456789abcdef0123456789abcdef01234567"
CACHES = ("/srv/models", "/srv/models/saes/")
REVISION = Revision("acme/tiny", SHA, "/srv/models", f"/srv/models/acme--tiny/{SHA}")
FILES = (PresentFile("config.json", 2), PresentFile("a/model.safetensors", 9))


@pytest.mark.parametrize(
    ("path", "revision"),
    [
        (f"/srv/models/acme--tiny/{SHA}", REVISION),
        (f"/srv/models/acme--tiny/{SHA}/layer_3/sae.safetensors", REVISION),
        (
            f"/srv/models/gpt2/{SHA}",
            Revision("gpt2", SHA, "/srv/models", f"/srv/models/gpt2/{SHA}"),
        ),
        (
            f"/srv/models/saes/acme--tiny/{SHA}",
            Revision("acme/tiny", SHA, "/srv/models/saes/", f"/srv/models/saes/acme--tiny/{SHA}"),
        ),
        ("/srv/models/acme--tiny", None),
        ("/srv/models/acme--tiny/main", None),
        (f"/srv/models/a--b--c/{SHA}", None),
        (f"/srv/models2/acme--tiny/{SHA}", None),
        (f"/data/acme--tiny/{SHA}", None),
    ],
)
def test_only_a_folder_of_a_commit_in_a_cache_folder_is_a_download(
    path: str, revision: Revision | None
) -> None:
    assert fetching.revision_of(path, CACHES) == revision


@pytest.mark.parametrize(
    ("lacking", "revision", "presence"),
    [
        ([], REVISION, Presence.THERE),
        ([], None, Presence.THERE),
        (["config.json"], REVISION, Presence.FETCH),
        (["config.json"], None, Presence.LACKING),
    ],
)
def test_only_files_of_the_hub_that_are_missing_are_fetched(
    lacking: list[str], revision: Revision | None, presence: Presence
) -> None:
    assert fetching.presence(lacking, revision) is presence


def test_a_node_lacks_files_that_are_missing_or_have_another_size() -> None:
    assert fetching.lacking(FILES, {"config.json": 2, "a/model.safetensors": 9, "more": 1}) == []
    assert fetching.lacking(FILES, {"config.json": 3}) == ["config.json", "a/model.safetensors"]


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/srv/models", "/mnt/models"),
        ("/srv/models/a/b", "/mnt/models/a/b"),
        ("/srv/models/saes/a", "/mnt/other/a"),
        ("/srv/models2/a", "/srv/models2/a"),
    ],
)
def test_paths_in_cache_folders_are_those_of_the_node(path: str, there: str) -> None:
    folders = {"/srv/models": "/mnt/models/", "/srv/models/saes": "/mnt/other"}
    assert fetching.moved(path, folders) == there


def test_the_digests_of_the_hub_are_those_of_the_files_that_are_fetched() -> None:
    listing = [
        RepoFile("README.md", 5, "e" * 40),
        RepoFile("config.json", 2, "c" * 40),
        RepoFile("a/model.safetensors", None, "d" * 64),
    ]
    assert fetching.listed_files(FILES, listing) == (
        RepoFile("config.json", 2, "c" * 40),
        RepoFile("a/model.safetensors", 9, "d" * 64),
    )


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (RepoFile("model.safetensors", 9), "'config.json', which this service has, is not among"),
        (RepoFile("config.json", 3), "'config.json' has 2 bytes here and 3 on the hub"),
    ],
)
def test_files_that_the_hub_does_not_have_so_are_refused(file: RepoFile, why: str) -> None:
    with pytest.raises(Refusal, match=why) as raised:
        fetching.listed_files(FILES[:1], [file])
    assert raised.value.code == "DOWNLOAD_FAILED"


def test_the_text_of_a_task_leaves_out_the_token() -> None:
    task = FetchTask("acme/tiny", SHA, "/c", FILES, "https://hub", "hf_sentinel", 3, 60.0, 0)
    assert "sentinel" not in repr(task)
