"""Requests to the model: their fields, their turn, the shapes of passes, structured output."""
