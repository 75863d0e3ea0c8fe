"""The registered SAEs, from this machine and from the hub, and the attached ones."""
