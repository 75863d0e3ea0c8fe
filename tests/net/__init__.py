"""The net: what today's build answers, pinned."""
