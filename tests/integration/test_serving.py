"""`transformers serve` answers with our models, through `examples/serve.py`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import mentalese
from mentalese.packaged import packaged

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
MODEL = str(packaged("models:coconut-composition"))
QUESTION = "a b c"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of a server of one model."""
    pytest.importorskip("openai", reason="needs transformers[serving]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(ROOT / "examples" / "serve.py"), MODEL, "--port", port, "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health").close()
                break
            except urllib.error.URLError:
                assert server.poll() is None, server.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.5)
        yield f"http://localhost:{port}"
        server.terminate()


def _post(address: str, **body: object) -> str:
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16} | body
        ).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def test_a_served_model_answers_as_generate_does(address: str) -> None:
    saved = mentalese.load(MODEL)
    (whole,) = saved.generate([QUESTION], max_new_tokens=16)
    answer = json.loads(_post(address, temperature=0))["choices"][0]["message"]["content"]
    assert answer
    assert whole.endswith(answer)


def test_a_served_model_streams(address: str) -> None:
    events = [line.removeprefix("data: ") for line in _post(address, temperature=0, stream=True).splitlines() if line]
    pieces = [
        json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events if event.startswith("{")
    ]
    answer = json.loads(_post(address, temperature=0))["choices"][0]["message"]["content"]
    assert "".join(pieces) == answer
