"""What features do in the texts of a corpus."""
