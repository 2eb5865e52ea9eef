"""The mechanism suite: tests of whether each mechanism of thought serves its purpose, at equal cost, with tuning."""
