// -- thoughts that read thoughts --------------------------------------------------------------------------------------

const MOST_ROWS = 400, MOST_ARCS = 800;

/** Arcs beside rows of a list: each from a row to one that it reads. Returns their SVG and what draws them. */
function arcsBeside(rows) {
  const svg = make("svg.arcs", { "aria-hidden": "true" }, make("g"), make("g.picked"));
  let middle = [], width = 0, widest = 1;
  /** Where the rows are; false while they are not on the page. */
  function measure() {
    width = svg.clientWidth;
    middle = rows.map((row) => row.offsetTop + row.offsetHeight / 2);
    return width > 0;
  }
  const arc = ([i, j, strength], name) => {
    const end = width - 10, reach = (end - 8) * 1.32 * (Math.abs(i - j) / widest) ** 0.7;
    return make(name, { d: `M${end} ${middle[j]}C${end - reach} ${middle[j]} ${end - reach} ${middle[i]} ${end} ${middle[i]}`, "--w": strength.toFixed(3) });
  };
  return {
    svg, measure,
    all(edges) {
      widest = Math.max(2, ...edges.map(([i, j]) => Math.abs(i - j)));
      svg.firstChild.replaceChildren(...edges.map((edge) => arc(edge, "path")));
    },
    picked(i, reads, by) {
      svg.classList.toggle("some", reads.length + by.length > 0);
      svg.lastChild.replaceChildren(...reads.map(([j, , width]) => arc([i, j, width], "path.reads")), ...by.map(([j, , width]) => arc([j, i, width], "path.by")),
        ...(reads.length ? [make("path.tip-of", { d: `M${width - 1} ${middle[i]}l-9 -5v10z` })] : []));
    },
  };
}

function sentencesPanel(trace) {
  const keys = Object.keys(trace.links);
  if (!keys.length || !trace.thoughts.length || trace.streams) return null; // the streams panel shows them
  const count = Math.min(trace.thoughts.length, MOST_ROWS), last = count - 1;
  let key = keys[0], at = null;
  const about = make("p.about");
  const rows = range(count).map((i) => {
    const { start, end, label } = trace.thoughts[i];
    const node = make("li", { tabindex: i === last ? 0 : -1 }, make("span.number", {}, i + 1),
      make("span.excerpt", {}, excerpt(trace, start, end) || label || "–"), make("span.value"));
    node.index = i;
    return node;
  });
  const arcs = arcsBeside(rows);
  const others = (list, i) => list[i].filter(([j]) => j !== i && j < count);
  function draw() {
    if (!arcs.measure()) return;
    const edges = range(count).flatMap((i) => others(trace.reads[key], i).map(([j, , width]) => [i, j, width]));
    arcs.all(edges.sort((a, b) => b[2] - a[2]).slice(0, MOST_ARCS));
    show(at ?? last);
  }
  function show(i) {
    at = i;
    const reads = others(trace.reads[key], i), by = others(trace.readBy[key], i);
    arcs.picked(i, reads, by);
    rows.forEach((node, n) => {
      node.className = n === i ? "here" : "";
      node.style.setProperty("--w", 0);
      node.lastChild.textContent = "";
    });
    for (const [name, list] of [["reads", reads], ["by", by]]) for (const [j, weight, width] of list) {
      rows[j].classList.add(name);
      if (name === "reads") rows[j].style.setProperty("--w", width);
      rows[j].lastChild.textContent = say(weight, trace.links[key]);
    }
  }
  /** Back to the token that is chosen, or to the last thought, which can read all others. */
  const rest = () => show(clamp(trace.of[view.token]?.[0] ?? last, 0, last));
  const list = (i) => trace.reads[key][i].map(([j, weight]) => `${j + 1} (${say(weight, trace.links[key])})`).join(", ");
  const described = (i) => `${i + 1}: ${trace.reads[key][i].length
    ? `reads ${list(i)}` : "reads no other"}`;
  const lines = make("ol", {
    "aria-label": "Thoughts in the order of the text",
    onpointerover: (event) => {
      const row = event.target.closest("li");
      if (row) { show(row.index); light([row.index]); }
    },
    onpointerleave: () => { rest(); light(view.token === null ? [] : trace.of[view.token]); },
    onfocusin: (event) => {
      rows.forEach((row) => { row.tabIndex = row === event.target ? 0 : -1; });
      show(event.target.index);
      light([event.target.index]);
      live.textContent = described(event.target.index);
    },
    onkeydown: (event) => walk(rows, event.target.index, event, BOTH),
  }, ...rows);
  about.textContent = trace.links[key].about;
  new ResizeObserver(draw).observe(lines);
  const cut = trace.thoughts.length > count ? `· first ${count} of ${trace.thoughts.length}` : "";
  return {
    node: section("What each thought reads", null,
      keys.length > 1 ? choose("Read by", keys.map((k) => [k, trace.links[k].title]), key, (k) => { key = k; about.textContent = trace.links[key].about; draw(); }) : "",
      about, legendOf({ reads: "what it reads", by: "what reads it" }, `· thicker: more ${cut}`),
      make("div.links", {}, arcs.svg, lines),
      asTable(["thought", "text", "reads (weight)"], () => trace.thoughts.map(({ start, end }, i) =>
        [i + 1, excerpt(trace, start, end), list(i)]))),
    point(token) {
      const i = token === null ? last : trace.of[token][0];
      if (i !== undefined && i !== at && i < count) show(i);
    },
  };
}
