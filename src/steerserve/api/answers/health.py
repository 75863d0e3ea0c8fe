"""What the routes of health answer, beside the views of `control/vitals`, which are answered as they are."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from steerserve.control.health.views import Capabilities, FixedSampling, QueueLimits
from steerserve.rules.inference.stepping import CudaGraphs, RowSteps, SeededRows


class BackendReport(TypedDict):
    """The backend that serves. Either `queue` or `cbm_config` is there, with the limits of the backend in use."""

    backend: str
    description: str
    capabilities: Capabilities
    limitations: list[str]
    row_steps: RowSteps | None
    seeded_rows: SeededRows | None
    cuda_graphs: CudaGraphs | None
    queue: NotRequired[QueueLimits]
    cbm_config: NotRequired[FixedSampling]


class ServiceVersion(TypedDict):
    """The version of the service."""

    version: str
    app: str
