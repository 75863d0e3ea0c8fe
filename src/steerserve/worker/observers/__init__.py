"""The observers, which read activations of the attached SAEs while the model runs."""
