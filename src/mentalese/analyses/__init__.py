"""Figures of runs, results and models, with their numbers. No other package imports them."""
