"""Files of vectors and probes from the model hub, with the file beside each that says more about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from steerserve.files.vectors import METADATA_MAXIMUM, VectorFile
from steerserve.hub.client import Hub
from steerserve.rules.steering.vector import invalid
from steerserve.rules.text import shown

HUB_FILE_MAXIMUM = 10 << 20
"""The largest file in bytes that is read from the hub."""

KEYS_KEPT = 128
"""The most keys of a file that a record names."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository of the model hub. The token is sent to the hub and kept nowhere."""

    repo_id: str
    path: str
    revision: str | None
    token: str | None = field(default=None, repr=False)


async def fetched(
    hub: Hub, wanted: HubFile, metadata_name: Callable[[str], str | None], never: str | None = None
) -> tuple[VectorFile, dict[str, str]]:
    """A file of the hub with the one beside it that `metadata_name` names, and its place: its path, its repository and
    the commit. No file `never` may be beside it.

    Raises:
        Refusal: what `Hub.describe` raises; INVALID_VECTOR for a file that is not there, is too large, or is beside
            `never`.
    """
    described = await hub.describe(wanted.repo_id, wanted.revision, wanted.token)
    name = wanted.path.rpartition("/")[2]
    folder = wanted.path.removesuffix(name)
    sizes = {one.path: one.size for one in described.files}
    if wanted.path not in sizes:
        raise invalid(shown(wanted.path), f"is no file of {described.repo_id}")
    if never is not None and folder + never in sizes:
        raise invalid(name, f"needs {never}, which no engine here applies")
    if (sizes[wanted.path] or 0) > HUB_FILE_MAXIMUM:
        why = f"is larger than {HUB_FILE_MAXIMUM} bytes; download it, and give its local_path"
        raise invalid(name, why)

    async def content(path: str, most: int) -> bytes:
        return await hub.content(described.repo_id, described.sha, path, most, wanted.token)

    data = await content(wanted.path, HUB_FILE_MAXIMUM)
    beside, metadata = metadata_name(name), None
    if beside is not None and folder + beside in sizes:
        metadata = await content(folder + beside, METADATA_MAXIMUM)
    place = {"file": wanted.path, "repository_id": described.repo_id, "revision": described.sha}
    return VectorFile(name, data, metadata), place
