"""SAEs at layers of the loaded model."""
