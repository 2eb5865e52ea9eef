// -- chunks and their codes -------------------------------------------------------------------------------------------

/** Each chunk with its own codes, and those that were predicted for it. */
function chunksOf(trace) {
  return byStart(trace.thoughts.filter(({ codes }) => codes.length)).map((group) => {
    const predicted = group.find(({ label }) => label === "predicted");
    const actual = group.find((thought) => thought !== predicted) ?? predicted;
    return { ...actual, predicted: predicted === actual ? null : predicted?.codes ?? null };
  });
}

function chunkNode(trace, { start, end, codes, predicted }, n) {
  const text = trace.tokens.slice(start, end).map((token, t) => trace.special[start + t] ? mark(token) : token.replaceAll("\n", "↵")).join("").trimStart();
  const node = make("li", { tabindex: n ? -1 : 0 }, make("span.words", {}, text || "·"),
    make("span.cells", { "aria-hidden": "true" }, ...codes.map((code, book) => make(predicted && predicted[book] === code ? "i.right" : predicted ? "i" : "i.free"))));
  node.index = n;
  return node;
}

function chunksPanel(trace) {
  const chunks = chunksOf(trace);
  if (!chunks.length) return null;
  const books = chunks[0].codes.length;
  const guessed = chunks.filter(({ predicted }) => predicted);
  const right = (book) => mean(guessed.map(({ codes, predicted }) => +(codes[book] === predicted[book])));
  const sharing = (book, code) => chunks.filter(({ codes }) => codes[book] === code);
  let picked = null, at = 0;
  const detail = make("div.detail");
  const nodes = chunks.map((chunk, n) => chunkNode(trace, chunk, n));
  const isPicked = (book, code) => Boolean(picked) && picked[0] === book && picked[1] === code;
  function pick(book, code) {
    picked = isPicked(book, code) ? null : [book, code];
    nodes.forEach((node, n) => node.classList.toggle("shared", Boolean(picked) && chunks[n].codes[book] === code));
    light(picked ? range(trace.thoughts.length).filter((i) => trace.thoughts[i].label !== "predicted" && trace.thoughts[i].codes[book] === code) : []);
    show(at);
    if (picked) live.textContent = `code ${code} of segment ${book + 1}: ${plural(sharing(book, code).length, "chunk")}`;
  }
  function show(n) {
    at = n;
    nodes.forEach((node, i) => { node.classList.toggle("here", i === n); node.tabIndex = i === n ? 0 : -1; });
    const { codes, predicted, start, end } = chunks[n];
    detail.replaceChildren(make("h3", {}, `“${excerpt(trace, start, end)}”`), make("table", {},
      make("thead", {}, make("tr", {}, ...["segment", "code", "predicted", "chunks with it"].map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...codes.map((code, book) => make("tr", {}, make("th", { scope: "row" }, book + 1),
        make("td", {}, make("button.code", { type: "button", "aria-pressed": String(isPicked(book, code)),
          onclick: () => { pick(book, code); detail.querySelectorAll("button")[book].focus(); } }, code)),
        make("td", {}, predicted ? `${predicted[book]}${predicted[book] === code ? " ✓" : ""}` : "–"),
        make("td", {}, sharing(book, code).length))))));
  }
  const list = make("ol.chunks", {
    "aria-label": "Chunks of the text",
    onpointerover: (event) => {
      const node = event.target.closest("li");
      if (node) point(chunks[node.index].start);
    },
    onpointerleave: () => point(null),
    onclick: (event) => event.target.closest("li")?.focus(),
    onfocusin: (event) => {
      show(event.target.index);
      live.textContent = `chunk ${at + 1}, ${excerpt(trace, chunks[at].start, chunks[at].end)}: codes ${chunks[at].codes.join(", ")}`;
    },
    onkeydown: (event) => walk(nodes, at, event, BOTH),
  }, ...nodes);
  show(Math.max(0, chunks.indexOf(guessed[0])));
  const share = guessed.length ? ` In ${plural(guessed.length, "predicted chunk")}, ${percent(mean(range(books).map(right)))} of the codes are predicted correctly.` : "";
  return {
    node: section("Chunks and their codes", `Each chunk of the text has ${plural(books, "code")}, one per segment of its concept.${share} Select a code to see the other chunks with it.`,
      legendOf({ right: "predicted correctly", wrong: "predicted wrongly", free: "not predicted" }),
      make("div.codes", {}, list, detail),
      asTable(["chunk", "text", "codes", "predicted"], () => chunks.map(({ start, end, codes, predicted }, n) =>
        [n + 1, excerpt(trace, start, end), codes.join(" "), predicted ? predicted.join(" ") : "–"]))),
    point(token) {
      const chunk = token === null ? -1 : chunks.findIndex(({ start, end }) => start <= token && token < end);
      nodes.forEach((node, i) => node.classList.toggle("pointed", i === chunk));
    },
  };
}
