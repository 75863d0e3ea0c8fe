"""What the layers of the model say of the next token, and which features a token owes itself to."""
