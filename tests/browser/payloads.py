"""Made-up payloads of the viewer's page, one for each kind of thing that a trace can hold."""

from __future__ import annotations

import math
import random
import re
from typing import Any

TEXT = """In May the sisters rented a house above the harbour. Nora, who was older, took the room with the stove, and \
Lena slept under the roof, where rain kept her awake.
They had no money, but their aunt sent flour and apples from the valley. On the third evening a stranger knocked. \
He said that he had known their father, and that he had come to return a debt. Nora did not believe him. Lena gave him \
soup; he ate without a word, and when he rose he left a small brass key on the table.

Years later nobody could say which door it had opened. Nora kept the key in the stove that was never lit again, and \
Lena, who had gone to sea, wrote that she heard rain wherever she slept."""

SENTENCE_START, SENTENCE_END, LATENT = "<|sentence_start|>", "<|sentence_end|>", "<|latent|>"

Payload = dict[str, Any]


def words(text: str) -> list[str]:
    """Tokens like those of byte-pair encodings: blanks before words, long words in two."""
    return [
        part
        for word in re.findall(r" ?\w+| ?[^\w\s]+|\s", text)
        for part in ((word[:6], word[6:]) if len(word) > 8 else (word,))
    ]


def page_of(*traces: dict[str, Any], title: str = "") -> Payload:
    text = "".join(token for token, special in zip(traces[0]["tokens"], traces[0]["special"]) if not special)
    return {
        "version": 1,
        "title": title or " and ".join(trace["name"] for trace in traces),
        "control": None,
        "command": f"mentalese think runs/{traces[0]['name']} --file sisters.txt --out page.html",
        "created": "2025-11-21T21:00:00+00:00",
        "text": text,
        "note": "",
        "unlike": False,
        "traces": list(traces),
    }


def score(title: str, values: list[float | None], unit: str = "nats", diverging: bool = False) -> dict[str, Any]:
    about = f"{title[0].upper()}{title[1:]} of each token, made up for this page."
    return {"title": title, "unit": unit, "about": about, "values": values, "diverging": diverging}


def curve(title: str, x: str, values: list[float], unit: str = "nats") -> dict[str, Any]:
    return {
        "title": title,
        "along": x,
        "unit": unit,
        "about": f"{title[0].upper()}{title[1:]} by {x}.",
        "values": values,
    }


def thought(start: int, end: int, label: str = "", **fields: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "label": label, "layer": None, "codes": [], "nearest": []} | fields


def plain(text: str = TEXT, name: str = "gpt2/tiny", seed: int = 0, tokens: list[str] | None = None) -> dict[str, Any]:
    """A baseline: surprisal and entropy, no thoughts."""
    draw = random.Random(seed)
    tokens = tokens or words(text)
    special = [token.startswith("<|") for token in tokens]
    surprisal: list[float | None] = [
        None if i == 0 or hidden else round(min(14, draw.lognormvariate(0.6, 0.9)), 3)
        for i, hidden in enumerate(special)
    ]
    entropy = [None if hidden else round(draw.uniform(0.4, 5.5), 3) for hidden in special]
    return {
        "name": name,
        "short": name.partition("/")[0],
        "answer": None,
        "windows": [],
        "model": name.partition("/")[0],
        "parameters": 1_314_816,
        "about": "A Transformer without latent thoughts: what it knew of each token, and how sure it was.",
        "tokens": tokens,
        "special": special,
        "scores": {"surprisal": score("surprisal", surprisal), "entropy": score("entropy", list(entropy))},
        "thoughts": [],
        "links": {},
        "curves": {},
        "readings": [],
        "streams": None,
    }


def sentences(text: str = TEXT) -> dict[str, Any]:
    """Sentences that read those before them (Thought Gestalt)."""
    draw = random.Random(1)
    tokens, spans = [], []
    for sentence in re.findall(r"[^.]+\.\s*", text):
        start = len(tokens)
        tokens += [SENTENCE_START, *words(sentence), SENTENCE_END]
        spans.append((start, len(tokens)))
    trace = plain(name="thought_gestalt/tiny", seed=1, tokens=tokens)
    trace["about"] = "A sentence is read with the gestalts, one vector each, of the sentences before it in memory."
    trace["thoughts"] = [thought(*span) for span in spans]
    edges = []
    for i in range(1, len(spans)):
        shares = [draw.expovariate(1) ** 2 for _ in range(i)]
        total = sum(shares)
        best = sorted(range(i), key=lambda j: -shares[j])[:4]
        edges += [[i, j, round(shares[j] / total, 3)] for j in best if shares[j] / total >= 0.01]
    trace["links"] = {"memory": {"title": "memory", "about": "How much each sentence attends to gestalts before it.",
                                 "unit": "share",
                                 "edges": edges}}  # fmt: skip
    memory = [round(draw.random() ** 3, 4) for _ in tokens]
    trace["scores"]["memory_attention"] = score("memory read", list(memory), "share")
    trace["curves"] = {"memory_gate": curve("gate of the memory", "layer", [0.02, 0.11, 0.34, 0.29], "share")}
    return trace


def bubbles(text: str = TEXT) -> dict[str, Any]:
    """Tokens that split into streams (Thoughtbubbles)."""
    draw = random.Random(2)
    trace = plain(text, name="thoughtbubbles/tiny", seed=2)
    trace["about"] = "Streams of tokens fork where the model wants to think more, and the weakest are dropped."
    table: dict[str, list[Any]] = {name: [] for name in ("layer", "token", "parent", "weight", "kept", "fork")}

    def add(*row: Any) -> int:
        for column, value in zip(table.values(), row):
            column.append(value)
        return len(table["layer"]) - 1

    alive = [(t, -1, 1.0, False) for t in range(len(trace["tokens"]))]  # token, row, weight, made by a fork
    for layer in (3, 5):
        rows = []
        for token, parent, weight, _ in alive:
            share = weight * draw.random() ** 2
            rows.append(add(layer, token, parent, round(share, 3), share > 0.3, True))
            weight *= draw.uniform(0.6, 1)
            rows.append(add(layer, token, parent, round(weight, 3), weight > 0.5, False))
        alive = [
            (table["token"][row], row, table["weight"][row], table["fork"][row]) for row in rows if table["kept"][row]
        ]
    rows = [add(8, token, parent, round(weight * draw.uniform(0.8, 1), 3), True, False)
            for token, parent, weight, _ in alive]  # fmt: skip
    kept = sorted(rows, key=lambda row: table["token"][row])
    trace["streams"] = table
    trace["thoughts"] = [
        thought(
            table["token"][row], table["token"][row] + 1, "fork" if table["fork"][table["parent"][row]] else "token"
        )
        for row in kept
    ]
    edges = [[i, j, round(draw.uniform(0.05, 0.6), 3)] for i in range(len(kept)) for j in {draw.randrange(i + 1), i}]
    trace["links"] = {"attention": {"title": "attention", "about": "How much a stream reads of another.",
                                    "unit": "share",
                                    "edges": edges}}  # fmt: skip
    counts = [float(sum(table["token"][row] == t for row in kept)) for t in range(len(trace["tokens"]))]
    trace["scores"]["streams"] = score("streams", list(counts), "count")
    return trace


def passes(count: int = 6) -> dict[str, Any]:
    """Latents between a question and its answer (Coconut, AGCLR)."""
    draw = random.Random(3)
    question = words("Every yumpus is a rompus. Every rompus is a lorpus. Alex is a yumpus. Is Alex a lorpus?")
    tokens = [*question, *[LATENT] * count, *words(" Alex is a lorpus.")]
    trace = plain(name="coconut/tiny", seed=3, tokens=tokens)
    trace["about"] = "Between question and answer the model passes its last state on as the next input."
    names = [" yumpus", " rompus", " lorpus", " Alex", " is", " every", " not", "."]

    def nearest() -> list[list[Any]]:
        shares = sorted((draw.expovariate(1) ** 2 for _ in names), reverse=True)
        return [[name, round(share / sum(shares), 4)] for name, share in zip(draw.sample(names, 8), shares)]

    for n in range(count):
        column = len(question) + n
        trace["thoughts"] += [thought(column, column + 1, label, nearest=nearest()) for label in ("latent", "concept")]
    start = len(question) + count
    trace["answer"] = {"start": start, "text": "Alex is a lorpus.", "answer": "Alex is a lorpus.",
                       "expected": "Alex is a rompus.", "right": False}  # fmt: skip
    for key in ("write", "forget"):
        values = [round(0.1 + 0.8 * draw.random(), 3) for _ in range(count)]
        trace["curves"][key] = curve(f"{key} gate", "pass", values, "share")
    return trace


def chunks(text: str = TEXT) -> dict[str, Any]:
    """Concepts of four tokens each, by their codes (ConceptLM)."""
    draw = random.Random(4)
    trace = plain(text, name="conceptlm/tiny", seed=4)
    trace["about"] = "Every four tokens are pooled into a concept, and the next concept is predicted before its tokens."
    errors = []
    for j in range(len(trace["tokens"]) // 4):
        codes = [int(draw.triangular(0, 64, 5)) for _ in range(8)]
        trace["thoughts"].append(thought(4 * j, 4 * j + 4, "concept", codes=codes))
        if j:
            guess = [code if draw.random() < 0.45 else draw.randrange(64) for code in codes]
            trace["thoughts"].append(thought(4 * j, 4 * j + 4, "predicted", codes=guess))
            errors.append(round(draw.uniform(0.2, 1.4), 3))
    trace["curves"]["concept_error"] = curve("error of the concept", "chunk", errors, "")
    return trace


def readings(text: str = TEXT) -> dict[str, Any]:
    """A text written again from its latents, layer by layer (Latent Thought Models)."""
    draw = random.Random(5)
    trace = plain(text, name="latent_thought/tiny", seed=5)
    trace["about"] = "Thoughts of each layer are inferred for the whole text; the decoder reads the text under them."
    tokens, common = trace["tokens"], [" the", " and", " a", " of", ",", " her", " had"]
    for layer in range(1, 7):
        share = 1 - math.exp(-layer / 2.4)
        shown = [token if draw.random() < share else draw.choice(common) for token in tokens]
        title, right = f"thoughts of layers 1 to {layer}", [token == other for token, other in zip(shown, tokens)]
        trace["readings"].append({"title": title, "tokens": shown, "right": right})
    trace["thoughts"] = [thought(0, len(tokens), f"layer {i // 4}", layer=i // 4) for i in range(24)]
    trace["curves"] = {
        "elbo": curve("ELBO", "step", [round(-900 + 380 * (1 - math.exp(-i / 4)), 2) for i in range(16)]),
        "kl_by_layer": curve("KL", "layer", [14.2, 9.1, 4.4, 2.0, 0.7, 0.3]),
    }
    return trace


def two(text: str = TEXT) -> Payload:
    """Two models on one text, with the gain of each over the other."""
    one, other = readings(text), plain(text)
    for mine, others in ((one, other), (other, one)):
        pairs = zip(mine["scores"]["surprisal"]["values"], others["scores"]["surprisal"]["values"])
        gain = [None if a is None or b is None else round(b - a, 4) for a, b in pairs]
        mine["scores"]["gain"] = score(f"gain over {others['name']}", gain, diverging=True)
    return page_of(one, other)


FAMILIES = {
    "baseline": plain,
    "sentences": sentences,
    "bubbles": bubbles,
    "passes": passes,
    "chunks": chunks,
    "readings": readings,
}
