"""The contract (`base.py`), the way to a model (`auto.py`) and one folder a family."""
