"""The answers of compared models on their page, the wrong ones first."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mentalese.data.files import read_json_lines
from mentalese.files import unsealed

SHOWN = 20  # answers of each model
_COLUMNS = {"question": "question", "right answer": "expected", "answer": "answer", "text": "text"}


def answers_section(rows: Sequence[dict[str, Any]], folder: Path) -> str:
    """For each model the files with its answers, and the first of them, the wrong ones first; empty without any.

    Args:
        rows: of `compare.json`; their `answers` are files in the folder of the comparison, one per seed.
        folder: of the page; a file that has gone is left out.
    """
    parts = []
    for index, row in enumerate(rows):
        files = [file for file in row.get("answers", ()) if (folder / file).is_file()]
        if not files:
            continue
        lines = [unsealed(line, f"{where},") for where, line in read_json_lines(folder / files[0])]
        wrong = sum(not line["correct"] for line in lines)
        links = ", ".join(f'<a href="{quote(file)}">{escape(file)}</a>' for file in files)
        head = "".join(f"<th>{name}</th>" for name in (*_COLUMNS, "right"))
        body = "".join(map(_line, sorted(lines, key=lambda line: line["correct"])[:SHOWN]))
        parts.append(
            f'<details class="m{index}"><summary>{escape(row["name"])}: {wrong:,} of {len(lines):,} wrong</summary>'
            f'<p class="note">{links}</p><div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div></details>"
        )
    if not parts:
        return ""
    note = f"The first {SHOWN} answers of each model's first seed, the wrong ones first; the files have all of them."
    return "\n".join([*parts, f'<p class="note">{note}</p>'])


def _line(line: dict[str, Any]) -> str:
    right = "yes" if line["correct"] else "no"
    if not line["asked"]:
        right += ", not asked"
    elif not line["finished"]:
        right += ", unfinished"
    cells = (escape(str(line[field]).strip()) for field in _COLUMNS.values())
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, right)) + "</tr>\n"
