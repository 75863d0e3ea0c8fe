"""The layers that serving circuits claim."""
