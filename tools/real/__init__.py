"""Real models and real text that package registries have by name, for tests and benchmarks on weights that people
use. Nothing of them is kept in this repository."""
