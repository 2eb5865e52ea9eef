// -- streams by layer -------------------------------------------------------------------------------------------------

const LAYER = 72, BUBBLE = 19, TOP = 34, FOOT = 64, LETTER = 8;

/** Draws the visible part of a box that scrolls sideways, and again when it scrolls beyond that part. */
function windowed(box, draw) {
  let from = 0, to = -1;
  const update = () => {
    const at = box.scrollLeft, size = box.clientWidth;
    if (!size || (at >= from && at + size <= to)) return;
    [from, to] = [at - size, at + 2 * size];
    draw(from, to);
  };
  box.addEventListener("scroll", () => requestAnimationFrame(update), { passive: true });
  new ResizeObserver(update).observe(box);
}

/** The streams of a trace as rows of its table, by token and layer, and where each is drawn. */
function placed(trace) {
  const table = trace.streams;
  const layers = [...new Set(table.layer)].sort((a, b) => a - b);
  const isMade = (row) => table.kept[row] || !table.fork[row]; // forks that were rejected are not streams
  const rows = range(table.layer.length).filter(isMade);
  const columns = trace.tokens.map(() => layers.map(() => [])); // token -> layer -> rows of the table
  const children = table.layer.map(() => []);
  for (const row of rows) {
    columns[table.token[row]][layers.indexOf(table.layer[row])].push(row);
    if (table.parent[row] >= 0) children[table.parent[row]].push(row);
  }
  const x = [], y = [], left = [0];
  columns.forEach((byLayer, token) => {
    const letters = trace.special[token] ? 1 : Math.min(14, visible(trace.tokens[token]).length);
    const width = Math.max(40, LETTER * letters + 8, BUBBLE * Math.max(...byLayer.map((some) => some.length)) + 12);
    byLayer.forEach((some, layer) => {
      const above = (row) => table.parent[row] < 0 ? 0 : x[table.parent[row]];
      some.sort((a, b) => above(a) - above(b) || table.fork[a] - table.fork[b]);
      some.forEach((row, n) => {
        x[row] = left[token] + width / 2 + (n - (some.length - 1) / 2) * BUBBLE;
        y[row] = TOP + (layer + 0.75) * LAYER;
      });
    });
    left.push(left[token] + width);
  });
  const foot = Object.keys(trace.links).length ? FOOT : 0; // space for what streams read
  const height = TOP + (layers.length - 0.25) * LAYER + 16 + foot;
  const isFork = (row) => table.fork[row] || (table.parent[row] >= 0 && isFork(table.parent[row])); // or descends from one
  return { table, layers, rows, columns, children, x, y, left, foot, height, isFork };
}

/** The final streams are the trace's thoughts, token by token in the same order. */
function finalStreams(trace, { columns }) {
  const thoughtOf = new Map(), rowOf = new Map();
  trace.of.forEach((some, token) => some.forEach((thought, n) => {
    const row = [...columns[token].at(-1)].sort((a, b) => a - b)[n];
    if (row !== undefined) { thoughtOf.set(row, thought); rowOf.set(thought, row); }
  }));
  return { thoughtOf, rowOf };
}

/** What draws bubbles, branches, a token's column, its text, and what streams read. */
function brushes(trace, at, { thoughtOf, rowOf }) {
  const { table, x, y, left, height, isFork } = at;
  const centre = (token) => (left[token] + left[token + 1]) / 2;
  return {
    bubble(row) {
      const share = clamp(table.weight[row] ?? 1, 0, 1);
      const node = make(`circle${isFork(row) ? ".fork" : ""}${table.kept[row] ? "" : ".dropped"}`,
        { cx: x[row].toFixed(1), cy: y[row], r: (3.5 + 5 * Math.sqrt(share)).toFixed(1), "--w": share.toFixed(3) });
      node.row = row;
      return node;
    },
    branch(row, name = "path") {
      const parent = table.parent[row];
      const [from, top] = parent < 0 ? [centre(table.token[row]), TOP] : [x[parent], y[parent]];
      const middle = (top + y[row]) / 2;
      return make(name, { d: `M${from.toFixed(1)} ${top}C${from.toFixed(1)} ${middle} ${x[row].toFixed(1)} ${middle} ${x[row].toFixed(1)} ${y[row]}` });
    },
    column: (token) => make("rect", { x: left[token], y: 2, width: left[token + 1] - left[token], height: height - 4, rx: 6 }),
    name(token) {
      const fits = Math.max(2, Math.floor((left[token + 1] - left[token] - 4) / (LETTER - 0.6)));
      const word = trace.special[token] ? mark(trace.tokens[token]) : visible(trace.tokens[token]).replace(/^·/, "");
      return make("text", { x: centre(token), y: 20 }, word.length > fits ? `${word.slice(0, fits - 1)}…` : word);
    },
    /** Arcs below the last row, to the streams that these read. */
    readsOf: (rows) => Object.values(trace.reads).slice(0, 1).flatMap((reads) => rows.flatMap((row) => (reads[thoughtOf.get(row)] ?? [])
      .filter(([j]) => rowOf.has(j) && rowOf.get(j) !== row).map(([j, weight]) => {
        const other = rowOf.get(j), foot = y[row] + 11, deep = Math.min(FOOT - 14, 14 + Math.abs(x[row] - x[other]) / 6);
        return make("path.reads", { d: `M${x[row].toFixed(1)} ${foot}C${x[row].toFixed(1)} ${foot + deep} ${x[other].toFixed(1)} ${foot + deep} ${x[other].toFixed(1)} ${foot}`, "--w": weight.toFixed(3) });
      }))),
  };
}

function streamsPanel(trace) {
  if (!trace.streams?.layer.length) return null;
  const at = placed(trace), final = finalStreams(trace, at), brush = brushes(trace, at, final);
  const { table, layers, rows, columns, children, left, foot, height } = at;
  const svg = make("svg", { width: left.at(-1), height, "aria-hidden": "true" }), over = make("g.over");
  const named = (n) => n === layers.length - 1 ? "at the end" : `at layer ${layers[n]}`;

  /** A stream, its ancestors and its descendants. */
  function family(row) {
    const kin = [];
    for (let up = row; up >= 0; up = table.parent[up]) kin.push(up);
    const down = [...children[row]];
    while (down.length) { const next = down.pop(); kin.push(next); down.push(...children[next]); }
    over.replaceChildren(brush.column(table.token[row]), ...kin.map((one) => brush.branch(one, "path.kin")), ...(final.thoughtOf.has(row) ? brush.readsOf([row]) : []));
  }
  const box = make("div.streams", {
    tabindex: 0, role: "group", "aria-label": "Streams by layer; the arrow keys move through the tokens",
    onpointerover: (event) => {
      const { row } = event.target;
      if (row === undefined) return;
      showTip(`${visible(trace.tokens[table.token[row]])} · ${percent(table.weight[row] ?? 1)}${table.fork[row] ? " · forked here" : ""}${table.kept[row] ? "" : " · dropped here"}`, event.target);
      for (const panel of panels) if (panel.node !== node) panel.point?.(table.token[row]);
      family(row);
      if (final.thoughtOf.has(row)) light([final.thoughtOf.get(row)]);
    },
    onpointerout: (event) => event.target.row !== undefined && (hideTip(), point(null)),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const token = clamp((view.token ?? -step) + step, 0, columns.length - 1);
      point(token, { pinned: true });
      live.textContent = `${visible(trace.tokens[token])}: ${columns[token].map((rows, n) => `${plural(rows.filter((row) => table.kept[row]).length, "stream")} ${named(n)}`).join(", ")}`;
    },
  }, svg);
  windowed(box, (from, to) => {
    const seen = range(columns.length).filter((token) => left[token + 1] > from && left[token] < to);
    const inView = seen.flatMap((token) => columns[token].flat());
    svg.replaceChildren(over, make("g", {}, ...inView.map((row) => brush.branch(row))), make("g", {}, ...inView.map(brush.bubble)), make("g", {}, ...seen.map(brush.name)));
  });

  const last = columns.map((byLayer) => byLayer.at(-1)), first = last.slice(0, 12).map((some) => some.length);
  const usual = first.indexOf(Math.max(...first)); // shown while nothing is pointed at: the first that forks most
  const pick = (token) => over.replaceChildren(brush.column(token), ...brush.readsOf(last[token]));
  pick(usual);
  const made = rows.filter((row) => table.fork[row]).length, ended = rows.filter((row) => !table.kept[row]).length;
  const node = section("Streams by layer",
    `From top to bottom, each token's streams after each forking layer: ${plural(trace.tokens.length, "token")}, ${plural(made, "fork")}, ${plural(ended, "stream")} dropped, ${plural(last.flat().length, "stream")} at the end.`,
    legendOf({ own: "a token's own", fork: "from a fork", dropped: "dropped here" }, "· larger and darker: higher weight"),
    make("div.streams-frame", {}, make("ul.layers", { "aria-hidden": "true" }, ...layers.map((_, n) => make("li", { "--y": `${TOP + (n + 0.75) * LAYER}px` }, named(n))),
      ...(foot ? [make("li.foot", { "--y": `${height - foot + 6}px` }, "and reads")] : [])), box),
    asTable(["row", "layer", "token", "parent", "weight", "kept", "fork"], () => table.layer.map((layer, row) =>
      [row, layer, visible(trace.tokens[table.token[row]]), table.parent[row] >= 0 ? table.parent[row] : "–", percent(table.weight[row] ?? 1), table.kept[row] ? "yes" : "no", table.fork[row] ? "yes" : "no"])));
  return {
    node,
    point(token, pinned) {
      pick(token ?? usual);
      if (token === null || !pinned) return;
      const [start, end] = [left[token], left[token + 1]];
      if (start < box.scrollLeft || end > box.scrollLeft + box.clientWidth) box.scrollLeft = start - box.clientWidth / 2;
    },
  };
}
