"""Trained models as package data: each folder next to this file is one, opened with `mentalese.load("models:NAME")`."""
