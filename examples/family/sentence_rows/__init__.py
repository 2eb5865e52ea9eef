"""A family that brings a layout of text and no model: one folder, and an entry point."""

from mentalese import Family

FAMILY = Family(
    name="sentence_rows",
    description="GPT-2 that never reads more than one sentence",
    recipes="sentence_rows.recipes:RECIPES",
    classes={},
    layouts={"sentence_rows": "sentence_rows.layout:SentenceRows"},
)
