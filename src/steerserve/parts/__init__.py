"""What requests may ask for beside their goal. `part.py` says what a part is, `row_part.py` what it does for a row."""
