"""Files and functions can be read in one go."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"


def test_files_and_functions_can_be_read_in_one_go() -> None:
    long = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 600:
            long.append(f"{path.relative_to(SOURCE)} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            count = sum(argument.arg not in ("self", "cls") for argument in arguments)
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > 80:
                long.append(f"{path.relative_to(SOURCE)}: {node.name} has {lines} lines")
            if count > 10 and node.name != "forward":  # the one forward has Hugging Face's signature
                long.append(f"{path.relative_to(SOURCE)}: {node.name} has {count} parameters")
    assert not long, "\n".join(long)
