"""`mentalese play` serves its own page, to this machine, and nothing else."""

from __future__ import annotations

import http.client
import json
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mentalese import get_recipe
from support import saved, shrink

pytestmark = pytest.mark.slow

pytest.importorskip("gradio")
JOIN = "/gradio_api/queue/join"
BODY = json.dumps({"data": [], "fn_index": 0, "session_hash": "reader"})


def serve(model: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mentalese", "play", str(model), "--port", str(port), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert re.search(r"http://\S+", line), line + server.stdout.read()
        yield server, port
        server.terminate()


@pytest.fixture(scope="module")
def model(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("play") / "run", shrink(get_recipe("gpt2/tiny"), corpus))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    yield from serve(model)


@pytest.fixture(scope="module")
def port(server: tuple[subprocess.Popen[str], int]) -> int:
    return server[1]


def status(port: int, path: str, *, host: str | None = None, origin: str | None = None, body: str | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Host": host or f"127.0.0.1:{port}", "Content-Type": "application/json"}
    headers |= {} if origin is None else {"Origin": origin}
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_the_page_is_bound_to_this_machine(port: int) -> None:
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
    every = Path("/proc/net/tcp6")
    assert not every.exists() or f":{port:04X} 0000" not in every.read_text()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_names_of_this_machine_are_answered(host: str, port: int) -> None:
    place = f"{host}:{port}"
    assert status(port, "/", host=place) == 200
    assert status(port, JOIN, host=place, origin=f"http://{place}", body=BODY) == 200


@pytest.mark.parametrize("path", ["/", "/config", JOIN])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("example.org", None),
        ("example.org:{port}", "http://example.org:{port}"),
        ("127.0.0.1.example.org:{port}", None),
        ("192.0.2.1:{port}", None),
        (None, "http://example.org"),
        (None, "null"),
        (None, "http://127.0.0.1:1"),
        ("127.0.0.1:{port}", "http://localhost:{port}"),
    ],
)
def test_foreign_hosts_and_origins_are_refused(host: str | None, origin: str | None, path: str, port: int) -> None:
    host, origin = (word and word.format(port=port) for word in (host, origin))
    assert status(port, path, host=host, origin=origin, body=BODY if path == JOIN else None) == 403


def test_no_file_is_served(port: int, model: Path) -> None:
    config = model / "config.json"
    for file in (config, Path("/etc/hostname"), Path("pyproject.toml")):
        up = "../" * 12
        for path in (f"/gradio_api/file={file}", f"/file={file}", f"/static/{up}{file}", f"/assets/..%2f{file}"):
            assert status(port, path) in (403, 404), path


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def write(port: int, session: str) -> str:
    """Have the page write a text for a reader of its own, and return the events of its queue."""
    config = json.loads(fetched(port, "/config"))
    kinds = {one["id"]: one for one in config["components"]}
    [answer] = [one for one in config["dependencies"] if len(one["inputs"]) > 1]
    settings = [kinds[i]["props"] for i in answer["inputs"]]
    values = [4 if of.get("label") == "New tokens" else of.get("value") for of in settings]
    body = {"data": ["The function", *values[1:]], "fn_index": answer["id"], "session_hash": session}
    fetched(port, JOIN, json.dumps(body))
    return fetched(port, f"/gradio_api/queue/data?session_hash={session}")


def fetched(port: int, path: str, body: str | None = None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    assert answer.status == 200
    text = answer.read().decode()
    connection.close()
    return text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a process's memory from /proc")
def test_200_texts_leave_memory_as_it_was(server: tuple[subprocess.Popen[str], int]) -> None:
    """Each reader is new, as after a reload; what grows for each of them would show."""
    process, port = server
    before = 0
    for number in range(240):
        events = write(port, f"reader-{number}")
        assert '"success":true' in events.replace(" ", ""), events[-2000:]
        if number == 40:
            before = resident(process.pid)
    assert resident(process.pid) - before < 32 * 2**20
