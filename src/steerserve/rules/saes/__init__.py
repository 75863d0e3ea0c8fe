"""Names, shapes, sites and sets of SAEs, and whether an SAE fits a model."""
