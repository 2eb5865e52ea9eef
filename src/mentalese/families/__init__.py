"""One folder per family: `plain.py` (the method in one file), `model.py` (the same, fast), its config and recipes."""
