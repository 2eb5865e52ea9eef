"""Imports run downward only: what is below knows nothing of what is above."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"
LAYERS = (
    ("errors",),
    ("files",),
    ("screen", "values", "formatting", "network", "install"),
    ("html",),
    ("nn",),
    ("data",),
    ("recipe",),
    ("registry",),
    ("model_fields",),
    ("recipe_files",),
    ("models",),
    ("families",),
    ("provenance",),
    ("evaluation",),
    ("training",),
    ("compare",),
    ("analyses",),
    ("viewer",),
    ("suite",),
    ("api",),
    ("testing",),
    ("commands",),
    ("cli",),
)
"""From the ground up; rooms of one layer do not import each other."""
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}


def _room(parts: Sequence[str]) -> str:
    """Return the room of a module; a family's figures are analyses, and tasks of the suite sources of data."""
    if len(parts) > 2 and (parts[0], parts[2]) == ("families", "figures"):
        return "analyses"
    return "data" if tuple(parts[:2]) == ("suite", "tasks") else next(iter(parts), "")


def _rooms(path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports of the package: the room, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            whole = [f"mentalese.{alias.name}" for alias in node.names]
            names = whole if node.module == "mentalese" else [node.module or ""]
        for name in (name for name in names if name.startswith("mentalese.")):
            room = _room(name.split(".")[1:])
            if room in HEIGHT:  # what else the package exports is loaded from one of them
                yield room, node.lineno


def test_imports_run_downward() -> None:
    upward = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = _room(path.relative_to(SOURCE).with_suffix("").parts)
        if own in ("__init__", "__main__"):  # the front doors
            continue
        for room, line in _rooms(path):
            if room != own and HEIGHT[room] >= HEIGHT[own]:
                upward.append(f"{path.relative_to(SOURCE)}:{line} imports {room}")
    assert not upward, "\n".join(upward)


def test_every_room_has_a_layer() -> None:
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__", "__main__"} == set(HEIGHT)


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


def test_there_is_no_import_cycle_between_files() -> None:
    imports = {path: _files(path) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    done: set[Path] = set()

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        assert path not in trail, " -> ".join(str(p.relative_to(SOURCE)) for p in (*trail[trail.index(path) :], path))
        if path not in done:
            for other in imports.get(path, ()):
                visit(other, (*trail, path))
            done.add(path)

    for path in imports:
        visit(path, ())


def _files(path: Path) -> list[Path]:
    """The files that a file imports, wherever in it it does so."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mentalese"):
            parts = (node.module or "").split(".")[1:]
            for alias in node.names:
                inside = SOURCE.joinpath(*parts, f"{alias.name}.py")
                own = SOURCE.joinpath(*parts).with_suffix(".py") if parts else inside
                found += [file for file in (inside, own) if file.is_file()]
    return found
