"use strict";
// The page of one text's traces: a panel for each kind of data in a trace.
// Data become text nodes and attributes, never HTML.
{
const page = JSON.parse(document.getElementById("data").textContent);
const traces = page.traces;

// -- elements and words -----------------------------------------------------------------------------------------------

const DRAWN = new Set(["svg", "g", "path", "circle", "rect", "text"]);

/** `make("p.note", {onclick: f}, "text")`: an element with classes, attributes, listeners and children. */
function make(kind, attributes = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  const node = DRAWN.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) node.style.setProperty(key, value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const percent = (share) => `${+(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)}%`;
const tidy = (value) => { // + 0: minus zero is zero
  const small = value !== 0 && Math.abs(value) < 0.001;
  const text = small ? value.toExponential(1) : (value + 0).toLocaleString("en", { maximumSignificantDigits: 3 });
  return text.replaceAll("-", "−");
};

/** A value with its unit; `–` for a token without a value. */
function say(value, score) {
  if (value == null) return "–";
  const sign = score.diverging && value > 0 ? "+" : "";
  if (score.unit === "share") return sign + percent(value);
  return sign + tidy(value) + (score.unit === "nats" ? " nats" : "");
}

/** A token with visible white space, to be shown alone; a token without text is a later part of a character. */
const visible = (token) => token.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "…";

/** The same as nodes, with a faint space before a word. */
const word = (token) => /^ \S/.test(token) ? [make("span.blank", {}, "·"), visible(token.slice(1))] : [visible(token)];

/** A token that is not text: a small mark. */
const mark = (token) => (!token || /pad/i.test(token) ? "·" : /start|bos|begin|<s>/i.test(token) ? "‹" : /end|eos|<\/s>/i.test(token) ? "›" : "◦");

const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const range = (count) => Array.from({ length: count }, (_, i) => i);

/** The text from `start` to `end` on one line. */
function excerpt(trace, start, end) {
  return trace.tokens.slice(start, end).filter((_, i) => !trace.special[start + i]).join("").replace(/\s+/g, " ").trim();
}

/** A choice as radio buttons; the arrow keys move between them. */
function choose(label, options, chosen, act) {
  const name = `choice-${choose.count = (choose.count ?? 0) + 1}`;
  return make("fieldset.choose", {}, make("legend", {}, label), ...options.map(([value, text]) =>
    make("label", {}, make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => act(value) }),
      make("span", {}, text))));
}

function section(title, about, ...children) {
  const id = title.toLowerCase().replace(/\W+/g, "-");
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title),
    ...(about ? [make("p.about", {}, about)] : []), ...children);
}

/** The meaning of marks, by their class. */
const legendOf = (marks, note = "") => make("p.key", {}, ...Object.entries(marks).map(([name, words]) => make("span", {}, make(`i.${name}`), words)), note);

/** The numbers of a panel; the table is built when it is opened. */
function asTable(columns, rows) {
  const most = 2000;
  const details = make("details", { ontoggle: () => {
    if (details.children.length > 1) return;
    const all = rows();
    const cells = (row) => row.map((cell, i) => make(i ? "td" : "th", i ? {} : { scope: "row" }, String(cell)));
    details.append(make("div.scroll", { tabindex: 0, role: "group", "aria-label": "Table" }, make("table", {},
      make("thead", {}, make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, column)))),
      make("tbody", {}, ...all.slice(0, most).map((row) => make("tr", {}, ...cells(row)))))));
    if (all.length > most) details.append(make("p.about", {}, `The first ${most} of ${all.length} rows.`));
  } }, make("summary", {}, "As a table"));
  return details;
}

// -- thoughts by token, links by thought ------------------------------------------------------------------------------

for (const trace of traces) {
  const length = trace.tokens.length;
  trace.text = range(length).filter((i) => !trace.special[i]);
  trace.of = range(length).map(() => []); // token -> its thoughts, except those of the whole text
  trace.thoughts.forEach(({ start, end }, i) => {
    if (end - start < length) for (let t = start; t < end; t++) trace.of[t].push(i);
  });
  trace.reads = {}; // link -> thought -> [[thought, weight], ...], sorted by weight
  trace.readBy = {};
  for (const [key, { edges }] of Object.entries(trace.links)) {
    const lists = [trace.reads[key], trace.readBy[key]] = range(2).map(() => trace.thoughts.map(() => []));
    for (const [i, j, weight] of edges) {
      lists[0][i].push([j, weight]);
      lists[1][j].push([i, weight]);
    }
    for (const list of lists.flat()) list.sort((a, b) => b[1] - a[1]);
  }
}
// `prefix/name` without the half that both models share.
const halves = traces.map(({ name }) => name.split("/"));
const half = [0, 1].find((kept) => traces.length > 1 && halves.every((some) => some.length === 2) && halves[0][kept] !== halves[1][kept] && halves[0][1 - kept] === halves[1][1 - kept]);
traces.forEach((trace, i) => { trace.short = half === undefined ? trace.name : halves[i][half]; });

// The number of tokens at the start of the text that are the same in all traces.
const apart = traces[0].text.findIndex((token, place) => traces.some(({ text, tokens }) => tokens[text[place]] !== traces[0].tokens[token]));
const alike = apart < 0 ? traces[0].text.length : apart;

/** The place of this token of the text in the other trace; null if it is missing or follows other tokens there. */
function counterpart(token, trace, other) {
  const place = trace.text.indexOf(token);
  return place >= 0 && place < alike ? other.text[place] : null;
}

/** The scale of colours: the same for both models, from the 2nd to the 98th percentile of the values. */
function scaleOf(key) {
  const scores = traces.map((trace) => trace.scores[key]).filter(Boolean);
  const values = scores.flatMap((score) => score.values).filter((value) => value !== null).sort((a, b) => a - b);
  const at = (share) => values[Math.round(share * (values.length - 1))] ?? 0;
  let [low, high] = [at(0.02), at(0.98)];
  if (low === high) [low, high] = [at(0), at(1)];
  const diverging = scores[0].diverging;
  if (diverging) [low, high] = [-1, 1].map((sign) => sign * (Math.max(-low, high) || 1));
  else if (low > 0 && low < high / 3) low = 0;
  if (low === high) high = low + 1;
  const place = (value) => diverging ? clamp(value / high, -1, 1) : clamp((value - low) / (high - low), 0, 1);
  const share = (value) => diverging ? (place(value) + 1) / 2 : place(value); // of the range from low to high
  return { low, high, median: at(0.5), diverging, place, share, least: at(0), most: at(1) };
}

function paint(node, scale, value) {
  node.classList.toggle("none", value === null);
  const place = value === null ? 0 : scale.place(value);
  node.classList.toggle("less", place < 0);
  node.style.setProperty("--v", Math.abs(place).toFixed(3));
}

// -- the state that panels share --------------------------------------------------------------------------------------

const view = { trace: 0, score: "", difference: false, token: null };
const live = make("p.unseen", { "aria-live": "polite" });
const tip = make("div.tip", { "aria-hidden": "true", hidden: true });
let panels = [];

/** Tells the panels which token the pointer or the keyboard is at; null: none. */
function point(token, { pinned = false } = {}) {
  if (pinned) view.token = token;
  for (const panel of panels) panel.point?.(token ?? view.token, pinned);
}

/** Underlines the tokens of thoughts and, by weight, of the thoughts that they read. */
function light(thoughts) {
  for (const panel of panels) panel.light?.(thoughts);
}

function showTip(text, node) {
  const box = node.getClientRects()[0] ?? node.getBoundingClientRect();
  tip.textContent = text;
  tip.hidden = false;
  const half = tip.offsetWidth / 2 + 8;
  tip.style.left = `${clamp(box.left + box.width / 2, half, document.documentElement.clientWidth - half)}px`;
  tip.style.top = `${box.top > 44 ? box.top - 6 : box.bottom + tip.offsetHeight + 6}px`;
}
const hideTip = () => { tip.hidden = true; };

// -- the text, token by token -----------------------------------------------------------------------------------------

function textPanel(trace) {
  const keys = Object.keys(trace.scores);
  if (!keys.includes(view.score)) [view.score] = keys;
  let current = Math.min(view.token ?? 0, trace.tokens.length - 1);
  const tokens = trace.tokens.map((token, i) => {
    const node = make(trace.special[i] ? "span.token.special" : "span.token", { role: "option", tabindex: i === current ? 0 : -1 });
    if (trace.special[i]) {
      node.title = token;
      node.setAttribute("aria-label", token);
      node.append(mark(token));
    } else token.replace(/^ (?=\S)/, "").split("\n").forEach((part, n) =>
      node.append(...(n ? [make("span.newline", { "aria-hidden": "true" }), "\n"] : []), part));
    node.index = i;
    return node;
  });
  const value = (i) => trace.scores[view.score] ? say(trace.scores[view.score].values[i], trace.scores[view.score]) : "";
  const spoken = (i) => `${visible(trace.tokens[i])}, ${trace.scores[view.score]?.title ?? ""} ${value(i)}`;

  const flow = make("div.flow", {
    role: "listbox", "aria-label": "Text, token by token", "aria-orientation": "horizontal",
    onpointerover: (event) => {
      const node = event.target.closest(".token");
      if (!node) return;
      showTip(value(node.index), node);
      point(node.index);
    },
    onpointerleave: () => { hideTip(); point(null); },
    onfocusin: (event) => {
      const { index } = event.target;
      if (index === undefined) return;
      tokens[current].tabIndex = -1;
      tokens[current = index].tabIndex = 0;
      showTip(value(index), event.target);
      point(index, { pinned: true });
      live.textContent = spoken(index);
    },
    onfocusout: hideTip,
    onkeydown: (event) => {
      const at = event.target.index;
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const row = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const next = step ? at + step : row ? inNextLine(at, row) : { Home: 0, End: tokens.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      tokens[next]?.focus();
    },
  }, ...tokens.flatMap((node, i) => /^ \S/.test(trace.tokens[i]) && !trace.special[i] ? [" ", node] : [node])); // spaces have no colour

  function inNextLine(at, step) {
    const box = (i) => tokens[i].getClientRects()[0] ?? tokens[i].getBoundingClientRect();
    const here = box(at);
    let best, line;
    for (let i = at + step; tokens[i]; i += step) {
      const there = box(i);
      if (line === undefined && Math.abs(there.top - here.top) < here.height / 2) continue;
      line ??= there.top;
      if (Math.abs(there.top - line) > here.height / 2) break;
      if (best === undefined || Math.abs(there.left - here.left) < Math.abs(box(best).left - here.left)) best = i;
    }
    return best;
  }

  const legend = make("div.legend");
  const about = make("p.about");
  const margin = make("aside.margin", { "aria-label": "Selected token" });

  function colour(key) {
    view.score = key;
    const score = trace.scores[key];
    if (!score) return;
    const scale = scaleOf(key);
    tokens.forEach((node, i) => paint(node, scale, score.values[i]));
    about.textContent = score.about;
    legend.replaceChildren(...histogram(scale, score, trace.scores[key].values));
    panel.needle = (token) => {
      const value = token === null ? null : score.values[token];
      legend.classList.toggle("at", value != null);
      if (value != null) legend.style.setProperty("--at", scale.share(value));
    };
    readout(view.token);
  }

  function readout(token) {
    panel.needle?.(token);
    if (token === null || token >= trace.tokens.length) {
      margin.replaceChildren(make("p.about", {}, "Point at a token, or move through the text with the arrow keys."));
      return;
    }
    const shown = traces.map((one) => [one, one === trace ? token : counterpart(token, trace, one)]).filter(([, at]) => at !== null);
    const heads = shown.length > 1 ? [make("thead", {}, make("tr", {}, make("td"), ...shown.map(([one]) => make("th", { scope: "col" }, one.short))))] : [];
    const keys = [...new Set(shown.flatMap(([one]) => Object.keys(one.scores)))].filter((key) => key !== "gain" || view.difference);
    margin.replaceChildren(
      make("p.word", {}, ...word(trace.tokens[token])),
      make("p.about", {}, `token ${token + 1} of ${trace.tokens.length}`),
      make("table", {}, ...heads, make("tbody", {}, ...keys.map((key) => {
        const score = shown.map(([one]) => one.scores[key]).find(Boolean);
        return make(key === view.score ? "tr.chosen" : "tr", {}, make("th", { scope: "row" }, key === "gain" ? "gain" : score.title),
          ...shown.map(([one, at]) => make("td", {}, one.scores[key] && (key !== "gain" || one === trace) ? say(one.scores[key].values[at], score) : "")));
      }))));
  }

  const lit = new Set();
  const panel = {
    node: section("Text", null,
      keys.length > 1 && !view.difference ? choose("Coloured by", keys.map((key) => [key, trace.scores[key].title]), view.score, colour) : "",
      about, make("div.reading", {}, legend, flow, margin),
      asTable(["token", ...keys.map((key) => trace.scores[key].title)],
        () => trace.tokens.map((token, i) => [visible(token), ...keys.map((key) => say(trace.scores[key].values[i], trace.scores[key]))]))),
    point(token) {
      readout(token);
      panel.light(token === null ? [] : trace.of[token]);
    },
    light(thoughts) {
      for (const node of lit) node.classList.remove("own", "read");
      lit.clear();
      const highlight = ({ start, end }, name, weight) => {
        for (let t = start; t < end; t++) {
          const before = lit.has(tokens[t]) ? +tokens[t].style.getPropertyValue("--w") : 0;
          tokens[t].style.setProperty("--w", Math.max(weight, before));
          tokens[t].classList.add(name);
          lit.add(tokens[t]);
        }
      };
      for (const i of thoughts) {
        highlight(trace.thoughts[i], "own", 1);
        for (const reads of Object.values(trace.reads)) for (const [j, weight] of reads[i]) if (j !== i) highlight(trace.thoughts[j], "read", weight);
      }
    },
  };
  colour(view.difference ? "gain" : view.score);
  return panel;
}

/** The scale as a strip of colour, with a histogram of the tokens' values above it. */
function histogram(scale, score, values) {
  const bins = range(40).map(() => 0);
  for (const value of values) if (value !== null) bins[Math.min(39, Math.floor(40 * scale.share(value)))]++;
  const most = Math.max(1, ...bins);
  const bars = bins.map((count, i) => make("i", { "--h": count ? Math.max(0.04, count / most) : 0, "--x": i / 40 }));
  bars.forEach((bar, i) => paint(bar, scale, scale.low + (i + 0.5) / 40 * (scale.high - scale.low)));
  const end = (value, beyond, sign) => (beyond ? sign : "") + say(value, score);
  return [make("div.histogram", { "aria-hidden": "true" }, ...bars, make("b")),
    make("p.ends", {}, make("span", {}, end(scale.low, scale.least < scale.low, "≤ ")),
      make("span", {}, scale.diverging ? "0" : `median ${say(scale.median, { ...score, unit: score.unit === "share" ? "share" : "" })}`),
      make("span", {}, end(scale.high, scale.most > scale.high, "≥ ")))];
}

// -- two models -------------------------------------------------------------------------------------------------------

function gainPanel(trace, other) {
  const { values } = trace.scores.gain;
  const known = range(values.length).filter((i) => values[i] !== null);
  if (!known.length) return null;
  const sorted = [...known].sort((a, b) => values[b] - values[a]);
  const average = mean(known.map((i) => values[i]));
  const better = known.filter((i) => values[i] > 0).length;
  const list = (title, picked) => make("div", {}, make("h3", {}, title), make("ol.tokens", {}, ...picked.map((i) => make("li", {},
    make("button", { type: "button", onclick: () => document.querySelectorAll(".flow .token")[i].focus() },
      make("span", {}, ...word(trace.tokens[i])), make("small", {}, `…${excerpt(trace, Math.max(0, i - 8), i).slice(-34)}`)),
    make("span.value", {}, say(values[i], trace.scores.gain))))));
  return { node: section("Where they differ",
    `Mean surprisal is ${tidy(Math.abs(average))} nats ${average < 0 ? "higher" : "lower"} for ${trace.short} than for ${other.short}; it is lower on ${percent(better / known.length)} of ${plural(known.length, "token")}.`,
    make("div.pair", {}, list(`${trace.short} is better`, sorted.filter((i) => values[i] > 0).slice(0, 8)),
      list(`${other.short} is better`, sorted.filter((i) => values[i] < 0).slice(-8).reverse()))) };
}

// -- thoughts that read thoughts --------------------------------------------------------------------------------------

const ROW = 32, GUTTER = 120, MOST_ROWS = 400, MOST_ARCS = 800;

function linksPanel(trace) {
  const keys = Object.keys(trace.links);
  if (!keys.length || !trace.thoughts.length || trace.streams) return null; // the streams panel shows them
  const count = Math.min(trace.thoughts.length, MOST_ROWS);
  let key = keys[0], at = null;
  const about = make("p.about");
  const arcs = make("svg.arcs", { width: GUTTER, height: count * ROW, "aria-hidden": "true" });
  const rows = range(count).map((i) => {
    const { start, end, label } = trace.thoughts[i];
    const node = make("li", { tabindex: i ? -1 : 0 }, make("span.number", {}, i + 1),
      make("span.excerpt", {}, excerpt(trace, start, end) || label || "–"), make("span.value"));
    node.index = i;
    return node;
  });
  const arc = ([i, j, weight], name) => {
    const reach = 12 + (1.3 * GUTTER - 34) * (Math.abs(i - j) / Math.max(8, count)) ** 0.6;
    const [from, to] = [j, i].map((row) => (row + 0.5) * ROW);
    return make(name, { d: `M${GUTTER - 8} ${from}C${GUTTER - 8 - reach} ${from} ${GUTTER - 10 - reach} ${to} ${GUTTER - 7} ${to}`,
      "--w": weight.toFixed(3) });
  };
  function draw() {
    const { edges } = trace.links[key];
    const drawn = edges.filter(([i, j]) => i !== j && i < count && j < count).sort((a, b) => b[2] - a[2]).slice(0, MOST_ARCS);
    about.textContent = trace.links[key].about;
    arcs.replaceChildren(make("g", {}, ...drawn.map((edge) => arc(edge, "path"))), make("g.picked"));
    show(null);
  }
  function show(i) {
    at = i;
    const reads = i === null ? [] : trace.reads[key][i], by = i === null ? [] : trace.readBy[key][i];
    arcs.classList.toggle("some", i !== null);
    arcs.lastChild.replaceChildren(...reads.filter(([j]) => j !== i && j < count).map(([j, w]) => arc([i, j, w], "path.reads")),
      ...by.filter(([j]) => j !== i && j < count).map(([j, w]) => arc([j, i, w], "path.by")),
      ...(reads.length ? [make("path.tip-of", { d: `M${GUTTER - 1} ${(i + 0.5) * ROW}l-8 -4.5v9z` })] : []));
    rows.forEach((node, n) => {
      node.className = n === i ? "here" : "";
      node.style.setProperty("--w", 0);
      node.lastChild.textContent = "";
    });
    for (const [j, weight] of reads) if (rows[j] && j !== i) {
      rows[j].classList.add("reads");
      rows[j].style.setProperty("--w", weight);
      rows[j].lastChild.textContent = percent(weight);
    }
    for (const [j, weight] of by) if (rows[j] && j !== i) {
      rows[j].classList.add("by");
      rows[j].lastChild.textContent = percent(weight);
    }
  }
  const described = (i) => `${i + 1}: ${trace.reads[key][i].length
    ? `reads ${trace.reads[key][i].map(([j, w]) => `${j + 1} (${percent(w)})`).join(", ")}` : "reads no other"}`;
  const list = make("ol", {
    "aria-label": "Thoughts in the order of the text",
    onpointerover: (event) => {
      const row = event.target.closest("li");
      if (row && row.index !== at) { show(row.index); light([row.index]); }
    },
    onpointerleave: () => { show(null); point(null); },
    onfocusin: (event) => {
      rows.forEach((row) => { row.tabIndex = row === event.target ? 0 : -1; });
      show(event.target.index);
      light([event.target.index]);
      live.textContent = described(event.target.index);
    },
    onkeydown: (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      rows[event.target.index + step]?.focus();
    },
  }, ...rows);
  draw();
  const cut = trace.thoughts.length > count ? `· first ${count} of ${trace.thoughts.length}` : "";
  return {
    node: section("What each thought reads", null,
      keys.length > 1 ? choose("Read by", keys.map((k) => [k, trace.links[k].title]), key, (k) => { key = k; draw(); }) : "",
      about, legendOf({ reads: "what it reads", by: "what reads it" }, cut),
      make("div.links", {}, arcs, list),
      asTable(["thought", "text", "reads (weight)"], () => trace.thoughts.map(({ start, end }, i) =>
        [i + 1, excerpt(trace, start, end), trace.reads[key][i].map(([j, w]) => `${j + 1} (${percent(w)})`).join(", ")]))),
    point(token) {
      const [i] = token === null ? [] : trace.of[token];
      if (i !== at) show(i !== undefined && i < count ? i : null);
    },
  };
}

// -- streams by layer -------------------------------------------------------------------------------------------------

const LAYER = 66, BUBBLE = 17, TOP = 28, FOOT = 56;

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

function streamsPanel(trace) {
  const table = trace.streams;
  if (!table || !table.layer.length) return null;
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
    const width = Math.max(38, BUBBLE * Math.max(...byLayer.map((some) => some.length)) + 12);
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
  // The final streams are the trace's thoughts, token by token in the same order.
  const last = columns.map((byLayer) => byLayer.at(-1));
  const thoughtOf = new Map(), rowOf = new Map();
  trace.of.forEach((some, token) => some.forEach((thought, n) => {
    const row = [...last[token]].sort((a, b) => a - b)[n];
    if (row !== undefined) { thoughtOf.set(row, thought); rowOf.set(thought, row); }
  }));

  const svg = make("svg", { width: left.at(-1), height, "aria-hidden": "true" });
  const over = make("g.over");
  const bubble = (row) => {
    const share = table.weight[row] ?? 1;
    const node = make(`circle${isFork(row) ? ".fork" : ""}${table.kept[row] ? "" : ".dropped"}`,
      { cx: x[row].toFixed(1), cy: y[row], r: (3 + 4.5 * Math.sqrt(clamp(share, 0, 1))).toFixed(1), "--w": clamp(share, 0, 1).toFixed(3) });
    node.row = row;
    return node;
  };
  const branch = (row, name = "path") => {
    const parent = table.parent[row], token = table.token[row];
    const [from, top] = (parent < 0 ? [(left[token] + left[token + 1]) / 2, TOP] : [x[parent], y[parent]]);
    const middle = (top + y[row]) / 2;
    return make(name, { d: `M${from.toFixed(1)} ${top}C${from.toFixed(1)} ${middle} ${x[row].toFixed(1)} ${middle} ${x[row].toFixed(1)} ${y[row]}` });
  };
  const isFork = (row) => table.fork[row] || (table.parent[row] >= 0 && isFork(table.parent[row])); // or descends from one

  const box = make("div.streams", {
    tabindex: 0, role: "group", "aria-label": "Streams by layer; the arrow keys move through the tokens",
    onpointerover: (event) => {
      const { row } = event.target;
      if (row === undefined) return;
      showTip(`${visible(trace.tokens[table.token[row]])} · ${percent(table.weight[row] ?? 1)}${table.fork[row] ? " · forked here" : ""}${table.kept[row] ? "" : " · dropped here"}`, event.target);
      family(row);
      panels[0].point(table.token[row]);
      if (thoughtOf.has(row)) light([thoughtOf.get(row)]);
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
  const named = (n) => n === layers.length - 1 ? "at the end" : `at layer ${layers[n]}`;

  windowed(box, (from, to) => {
    const seen = range(columns.length).filter((token) => left[token + 1] > from && left[token] < to);
    const inView = seen.flatMap((token) => columns[token].flat());
    svg.replaceChildren(over, make("g", {}, ...inView.map((row) => branch(row))), make("g", {}, ...inView.map(bubble)),
      make("g", {}, ...seen.map((token) => {
        const fits = Math.max(2, Math.floor((left[token + 1] - left[token] - 4) / 7.2));
        const word = trace.special[token] ? mark(trace.tokens[token]) : visible(trace.tokens[token]).replace(/^·/, "");
        return make("text", { x: (left[token] + left[token + 1]) / 2, y: 18 }, word.length > fits ? `${word.slice(0, fits - 1)}…` : word);
      })));
  });

  /** A stream, its ancestors and its descendants. */
  function family(row) {
    const kin = [];
    for (let up = row; up >= 0; up = table.parent[up]) kin.push(up);
    const down = [...children[row]];
    while (down.length) { const next = down.pop(); kin.push(next); down.push(...children[next]); }
    over.replaceChildren(column(table.token[row]), ...kin.map((one) => branch(one, "path.kin")), ...(thoughtOf.has(row) ? readsOf([row]) : []));
  }
  const column = (token) => make("rect", { x: left[token], y: 2, width: left[token + 1] - left[token], height: height - 4, rx: 6 });
  /** Arcs below the last row, to the streams that these read. */
  const readsOf = (rows) => Object.values(trace.reads).slice(0, 1).flatMap((reads) => rows.flatMap((row) => (reads[thoughtOf.get(row)] ?? [])
    .filter(([j]) => rowOf.has(j) && rowOf.get(j) !== row).map(([j, weight]) => {
      const other = rowOf.get(j), foot = y[row] + 10, deep = Math.min(FOOT - 14, 12 + Math.abs(x[row] - x[other]) / 6);
      return make("path.reads", { d: `M${x[row].toFixed(1)} ${foot}C${x[row].toFixed(1)} ${foot + deep} ${x[other].toFixed(1)} ${foot + deep} ${x[other].toFixed(1)} ${foot}`, "--w": weight.toFixed(3) });
    })));

  const made = rows.filter((row) => table.fork[row]).length, ended = rows.filter((row) => !table.kept[row]).length;
  return {
    node: section("Streams by layer",
      `From top to bottom, each token's streams after each forking layer: ${plural(trace.tokens.length, "token")}, ${plural(made, "fork")}, ${plural(ended, "stream")} dropped, ${plural(last.flat().length, "stream")} at the end.`,
      legendOf({ own: "a token's own", fork: "from a fork", dropped: "dropped here" }, "· larger and darker: higher weight"),
      make("div.streams-frame", {}, make("ul.layers", { "aria-hidden": "true" }, ...layers.map((_, n) => make("li", { "--y": `${TOP + (n + 0.75) * LAYER}px` }, named(n))),
        ...(foot ? [make("li.foot", { "--y": `${height - foot + 6}px` }, "and reads")] : [])), box),
      asTable(["row", "layer", "token", "parent", "weight", "kept", "fork"], () => table.layer.map((layer, row) =>
        [row, layer, visible(trace.tokens[table.token[row]]), table.parent[row] >= 0 ? table.parent[row] : "–", percent(table.weight[row] ?? 1), table.kept[row] ? "yes" : "no", table.fork[row] ? "yes" : "no"]))),
    point(token, pinned) {
      over.replaceChildren(...(token === null ? [] : [column(token), ...readsOf(last[token])]));
      if (token === null || !pinned) return;
      const [start, end] = [left[token], left[token + 1]];
      if (start < box.scrollLeft || end > box.scrollLeft + box.clientWidth) box.scrollLeft = start - box.clientWidth / 2;
    },
  };
}

// -- passes through latents -------------------------------------------------------------------------------------------

/** Thoughts grouped by their first token, in the order of the text. */
function byStart(thoughts) {
  const groups = new Map();
  thoughts.forEach((thought) => groups.set(thought.start, [...(groups.get(thought.start) ?? []), thought]));
  return [...groups.values()];
}

function bars(rows, most) {
  return make("ol.bars", {}, ...rows.map(([token, value]) => make("li", {}, make("span.name", {}, ...word(token)),
    make("span.bar", { "--h": (value / most).toFixed(4), "aria-hidden": "true" }), make("span.value", {}, percent(value)))));
}

function passesPanel(trace) {
  const passes = byStart(trace.thoughts.filter(({ nearest }) => nearest.length));
  if (!passes.length) return null;
  const gates = Object.values(trace.curves).filter(({ x, values }) => x === "pass" && values.length === passes.length);
  const most = Math.max(...passes.flat().flatMap(({ nearest }) => nearest.map(([, share]) => share)), 1e-9);
  const shown = make("div.pass", { "aria-live": "polite" });
  let at = 0;
  function show(pass) {
    at = clamp(pass, 0, passes.length - 1);
    steps.querySelectorAll("input")[at].checked = true;
    [back, next].forEach((button, n) => { button.disabled = n ? at === passes.length - 1 : at === 0; });
    shown.replaceChildren(...passes[at].map(({ label, nearest }) => make("div", {}, make("h3", {}, label || "latent"),
      bars(nearest, most))),
    ...(gates.length ? [make("div", {}, make("h3", {}, "this pass"), make("dl.gates", {}, ...gates.flatMap((gate) =>
      [make("dt", {}, gate.title), make("dd", {}, say(gate.values[at], gate))])))] : []));
  }
  const first = (pass) => pass[0].nearest[0][0];
  const steps = choose("Pass", passes.map((pass, n) => [String(n), make("span.step", {}, make("b", {}, n + 1), make("small", {}, ...word(first(pass))))]), "0",
    (value) => { show(+value); light(trace.thoughts.map((_, i) => i).filter((i) => passes[at].includes(trace.thoughts[i]))); });
  const [back, next] = [["‹ back", -1], ["next ›", 1]].map(([text, step]) => make("button.plain", { type: "button", onclick: () => show(at + step) }, text));
  show(0);
  return {
    node: section("Pass by pass", "Between question and answer the model reads its own last hidden state instead of a token. For each pass: the most likely tokens when that state is decoded by the output embedding. The most likely one is below each step.",
      make("div.stepper", {}, back, steps, next), shown,
      asTable(["pass", "thought", "most likely tokens (probability)"], () => passes.flatMap((pass, n) => pass.map(({ label, nearest }) =>
        [n + 1, label, nearest.map(([token, share]) => `${visible(token)} (${percent(share)})`).join(", ")])))),
    point(token) {
      const pass = token === null ? -1 : passes.findIndex(([{ start, end }]) => start <= token && token < end);
      if (pass >= 0 && pass !== at) show(pass);
    },
  };
}

// -- chunks and their codes -------------------------------------------------------------------------------------------

function chunksPanel(trace) {
  const chunks = byStart(trace.thoughts.filter(({ codes }) => codes.length)).map((group) => {
    const predicted = group.find(({ label }) => label === "predicted");
    const actual = group.find((thought) => thought !== predicted) ?? predicted;
    return { ...actual, predicted: predicted === actual ? null : predicted?.codes ?? null };
  });
  if (!chunks.length) return null;
  const books = chunks[0].codes.length;
  const guessed = chunks.filter(({ predicted }) => predicted);
  const right = (book) => mean(guessed.map(({ codes, predicted }) => +(codes[book] === predicted[book])));
  const sharing = (book, code) => chunks.filter(({ codes }) => codes[book] === code);
  let picked = null, at = 0;
  const detail = make("div.detail");
  const nodes = chunks.map(({ start, end, codes, predicted }, n) => {
    const node = make("li", { tabindex: n ? -1 : 0 }, make("span.words", {}, trace.tokens.slice(start, end).map((token, t) => trace.special[start + t] ? mark(token) : token.replaceAll("\n", "↵")).join("").trimStart() || "·"),
      make("span.cells", { "aria-hidden": "true" }, ...codes.map((code, book) => make(predicted && predicted[book] === code ? "i.right" : predicted ? "i" : "i.free"))));
    node.index = n;
    return node;
  });
  function pick(book, code) {
    picked = picked && picked[0] === book && picked[1] === code ? null : [book, code];
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
        make("td", {}, make("button.code", { type: "button", "aria-pressed": String(Boolean(picked) && picked[0] === book && picked[1] === code),
          onclick: () => { pick(book, code); detail.querySelectorAll("button")[book].focus(); } }, code)),
        make("td", {}, predicted ? `${predicted[book]}${predicted[book] === code ? " ✓" : ""}` : "–"),
        make("td", {}, sharing(book, code).length))))));
  }
  const list = make("ol.chunks", {
    "aria-label": "Chunks of the text",
    onpointerover: (event) => {
      const node = event.target.closest("li");
      if (node) panels[0].point(chunks[node.index].start);
    },
    onpointerleave: () => point(null),
    onclick: (event) => event.target.closest("li")?.focus(),
    onfocusin: (event) => {
      show(event.target.index);
      live.textContent = `chunk ${at + 1}, ${excerpt(trace, chunks[at].start, chunks[at].end)}: codes ${chunks[at].codes.join(", ")}`;
    },
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      nodes[at + step]?.focus();
    },
  }, ...nodes);
  show(0);
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

// -- what the model would write ---------------------------------------------------------------------------------------

function readingsPanel(trace) {
  const { readings } = trace;
  if (!readings.length) return null;
  const own = range(trace.tokens.length).filter((i) => !trace.special[i]);
  const isRight = ({ tokens }, i) => tokens[i] === trace.tokens[i];
  const shares = readings.map((reading) => mean(own.map((i) => +isRight(reading, i))));
  // Lines break as in the text.
  const shown = (token, i) => /^<\|.*\|>$/.test(token) ? mark(token) : token.replaceAll("\n", "↵") + (trace.tokens[i].includes("\n") ? "\n" : "");
  const words = own.map((i) => { const node = make("span"); node.index = i; return node; });
  const text = make("p.filled", {
    onpointerover: (event) => event.target.index !== undefined && point(event.target.index),
    onpointerleave: () => point(null),
  }, ...words);
  const output = make("output");
  function show(at) {
    words.forEach((node, n) => {
      const i = own[n];
      node.textContent = shown(readings[at].tokens[i], i);
      node.className = isRight(readings[at], i) ? "right" : "";
    });
    output.replaceChildren(make("b", {}, readings[at].title), ` · ${percent(shares[at])} of the tokens match`);
    slider.setAttribute("aria-valuetext", output.textContent);
    profile.forEach((bar, n) => bar.classList.toggle("here", n === at));
  }
  const slider = make("input", { type: "range", min: 0, max: readings.length - 1, value: 0, "aria-label": "Reading", oninput: () => show(+slider.value) });
  const profile = shares.map((share) => make("i", { "--h": Math.max(0.03, share / (Math.max(...shares) || 1)).toFixed(3) }));
  show(0);
  const node = section("What the model would write", "The model's own token at each place: dark if it matches the text, faint if not.",
    make("div.slider", {}, ...(readings.length > 1 ? [make("div", {}, make("div.profile", { "aria-hidden": "true" }, ...profile), slider)] : []), output), text,
    asTable(["token", ...readings.map(({ title }) => title)], () => own.map((i) => [visible(trace.tokens[i]), ...readings.map(({ tokens }) => visible(tokens[i]))])));
  return { node, point: (token) => words.forEach((word) => word.classList.toggle("pointed", word.index === token)) };
}

// -- curves -----------------------------------------------------------------------------------------------------------

function curvesPanel(trace, others) {
  const drawn = Object.entries(trace.curves).filter(([, { x, values }]) =>
    values.filter((value) => value !== null).length > 1 && !(x === "stream" && trace.streams)); // the streams panel shows them
  if (!drawn.length) return null;
  return { node: section("Curves", null, make("div.curves", {}, ...drawn.map(([key, curve]) =>
    chart(curve, others.filter((other) => other.curves[key]?.values.length > 1).map((other) => [other.short, other.curves[key].values])))),
  asTable(["curve", "values"], () => drawn.map(([, curve]) => [curve.title, curve.values.map((value) => value == null ? "–" : tidy(value)).join(", ")]))) };
}

/** A small line chart under an invisible slider, so that pointer, keys and screen readers work alike. */
function chart(curve, others) {
  const lines = [curve.values, ...others.map(([, values]) => values)];
  const known = lines.flat().filter((value) => value != null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const first = ["layer", "block"].includes(curve.x) ? 0 : 1, length = Math.max(...lines.map((line) => line.length));
  const at = (i) => 100 * i / Math.max(1, length - 1), up = (value) => high === low ? 50 : 100 * (high - value) / (high - low);
  const path = (values) => values.map((value, i) => value == null ? "" : `${i && values[i - 1] != null ? "L" : "M"}${at(i).toFixed(2)} ${up(value).toFixed(2)}`).join("");
  const dots = curve.values.length > 40 ? "" : curve.values.map((value, i) => value == null ? "" : `M${at(i).toFixed(2)} ${up(value).toFixed(2)}h0`).join("");
  const hair = make("path.hair"), spot = make("path.spot");
  const output = make("output");
  function show(i) {
    const value = curve.values[i];
    hair.setAttribute("d", `M${at(i)} 0V100`);
    spot.setAttribute("d", value == null ? "" : `M${at(i)} ${up(value)}h0`);
    output.textContent = `${curve.x || "place"} ${first + i}: ${say(value, curve)}${others.map(([name, values]) => `, ${name} ${say(values[i], curve)}`).join("")}`;
    slider.setAttribute("aria-valuetext", output.textContent);
  }
  const calm = () => { output.textContent = ""; hair.setAttribute("d", ""); spot.setAttribute("d", ""); };
  const slider = make("input", { type: "range", min: 0, max: length - 1, value: 0, "aria-label": curve.title,
    oninput: () => show(+slider.value), onfocus: () => show(+slider.value), onblur: calm,
    onpointermove: (event) => {
      const box = slider.getBoundingClientRect();
      slider.value = Math.round((event.clientX - box.left) / box.width * (length - 1));
      show(+slider.value);
    },
    onpointerleave: () => document.activeElement === slider || calm() });
  return make("figure", {}, make("figcaption", {}, make("b", {}, curve.title), output),
    make("div.chart", {}, make("span.high", {}, tidy(high)), make("span.low", {}, high === low ? "" : tidy(low)),
      make("div.plot", {}, make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, hair,
        ...others.map(([, values]) => make("path.line.other", { d: path(values) })), make("path.line", { d: path(curve.values) }), make("path.dots", { d: dots }), spot), slider),
      make("p.axis", {}, make("span", {}, `${curve.x} ${first}`.trim()), make("span", {}, first + length - 1))),
    make("p.about", {}, curve.about, ...(others.length ? [` Thin line: ${others[0][0]}.`] : [])));
}

// -- the page ---------------------------------------------------------------------------------------------------------

function facts(trace) {
  const surprisal = (trace.scores.surprisal?.values ?? []).filter((value) => value !== null);
  const rows = [["model", trace.name], ["tokens", trace.tokens.length.toLocaleString("en")]];
  if (trace.parameters) rows.splice(1, 0, ["parameters", trace.parameters.toLocaleString("en")]);
  if (surprisal.length) rows.push(["mean surprisal", `${tidy(mean(surprisal))} nats`]);
  return make("dl.facts", {}, ...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const head = make("div"), body = make("div");

function draw() {
  const trace = traces[view.trace];
  hideTip();
  head.replaceChildren(make("p.lead", {}, view.difference ? `Blue: lower surprisal for ${trace.short}. Orange: lower surprisal for ${traces[1].short}.` : trace.about || "A model without latent thoughts."), ...(view.difference ? [] : [facts(trace)]));
  const others = traces.filter((other) => other !== trace);
  panels = [];
  panels = (view.difference ? [textPanel(trace), gainPanel(trace, traces[1])]
    : [textPanel(trace), linksPanel(trace), streamsPanel(trace), passesPanel(trace), chunksPanel(trace), readingsPanel(trace), curvesPanel(trace, others)]).filter(Boolean);
  body.replaceChildren(...panels.map(({ node }) => node));
  if (view.token !== null && view.token < trace.tokens.length) point(view.token, { pinned: true });
}

const options = traces.map((trace, i) => [String(i), trace.name]);
if (traces[0].scores.gain) options.push(["difference", "difference"]);
const switcher = traces.length > 1 ? choose("Model", options, "0", (value) => {
  if (!view.difference) view.kept = view.score;
  const before = traces[view.trace];
  view.difference = value === "difference";
  view.trace = view.difference ? 0 : +value;
  if (view.token !== null && before !== traces[view.trace]) view.token = counterpart(view.token, before, traces[view.trace]);
  view.score = view.difference ? "gain" : view.kept;
  draw();
}) : "";
const created = page.created ? new Date(page.created) : null;
document.querySelector("main").append(
  make("header", {}, make("p.kind", {}, "Mentalese · what a model thinks"), make("h1", {}, page.title), switcher, head, ...(page.note ? [make("p.about", {}, page.note)] : [])), body,
  make("footer", {}, make("h2", {}, "Provenance"), make("pre", { tabindex: 0 }, page.command),
    make("p.about", {}, created && !isNaN(created) ? `Created ${created.toISOString().slice(0, 16).replace("T", " ")} UTC by Mentalese.` : "Created by Mentalese.")),
  live, tip);
addEventListener("scroll", hideTip, { passive: true });
draw();
performance.mark("ready");
document.documentElement.dataset.ready = "yes";
}
