"""Which paths of this machine requests may name, by the settings."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from steerserve.files.client_paths import ClientPaths
from steerserve.settings import Settings
from steerserve.settings.secrets import NAMES, SUFFIX

__all__ = ["ClientPaths", "client_paths"]

_SQLITE = "sqlite+aiosqlite:///"


def client_paths(settings: Settings) -> ClientPaths:
    """The folders that LOCAL_PATHS allows, and the folders and files that are never read for a request."""
    caches = (settings.model_cache_dir, settings.sae_cache_dir, settings.lens_cache_dir)
    files = [getattr(settings, name + SUFFIX) for name in NAMES]
    files.append(Path(str(settings.model_config["env_file"])).absolute())
    database = None
    if settings.database_url.startswith(_SQLITE):
        database = Path(settings.database_url.removeprefix(_SQLITE)).absolute()
        files.append(database)
    allowed = settings.local_paths
    return ClientPaths(
        None if allowed is None and not settings.api_keys else tuple(allowed or ()),
        (settings.steerserve_home, *caches, Path(platformdirs.user_cache_dir("steerserve"))),
        tuple(file for file in files if file is not None),
        database,
        bool(settings.api_keys),
    )
