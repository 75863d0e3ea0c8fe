"""Which features fire while models answer."""
