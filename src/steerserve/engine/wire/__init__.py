"""The messages between the control plane and an engine process, and the parts that both kinds of engine share."""
