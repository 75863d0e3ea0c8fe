"""Real models in every precision: which ways compute them."""

from __future__ import annotations

import pytest
from tools.real.models import RealModel

from tests.real.asking import RealService
from tests.real.figures import Figures
from tests.real.reference import Reference

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["FP16", "Q8", "Q4"])
def form(request: pytest.FixtureRequest, service: RealService, real: RealModel) -> str:
    """The precision in which the model is loaded."""
    name: str = request.param
    service.load(real, name)
    return name


def test_no_fast_way_is_switched_off(
    service: RealService, real: RealModel, reference: Reference, figures: Figures, form: str
) -> None:
    health = service.live.data("GET", "/api/health/inference")
    compiled, exactness = health["compiled_functions"], health["exactness"]
    figures.note(real.name, f"{form}, fast ways", **compiled, exactness=exactness)
    if not compiled["are_used"]:
        pytest.skip(compiled["reason"])
    assert compiled["refused"] == []
    assert compiled["layers"] == reference.layers
    assert health["row_steps"]["are_batched"]
    assert health["seeded_rows"]["are_shared"]
    assert exactness["positions"] >= 300
    assert exactness["is_near"], exactness
