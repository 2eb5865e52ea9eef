// -- the text, token by token -----------------------------------------------------------------------------------------

function tokenNode(trace, i) {
  const token = trace.tokens[i];
  const node = make(trace.special[i] ? "span.token.special" : "span.token", { role: "option", tabindex: -1 });
  if (trace.special[i]) {
    node.title = token;
    node.setAttribute("aria-label", token);
    node.append(mark(token));
  } else token.replace(/^ (?=\S)/, "").split("\n").forEach((part, n) =>
    node.append(...(n ? [make("span.newline", { "aria-hidden": "true" }, "↵"), "\n"] : []), part));
  if (trace.answer && i >= trace.answer.start) node.classList.add("own-answer");
  node.index = i;
  return node;
}

/** The token in the next line (`step` 1) or the one before (-1) that is nearest to a token. */
function inNextLine(tokens, at, step) {
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

/** The tokens as one list to walk through; `told` is what is said of a token. */
function flowOf(trace, tokens, told) {
  let current = Math.min(view.token ?? 0, tokens.length - 1);
  tokens[current].tabIndex = 0;
  const windows = new Map(trace.windows.slice(1).map(([, first], n) => [first, n + 2]));
  const parts = tokens.flatMap((node, i) => [
    ...(windows.has(i) ? [make("span.window", { title: `window ${windows.get(i)} begins` }, String(windows.get(i)))] : []),
    ...(/^ \S/.test(trace.tokens[i]) && !trace.special[i] ? [" ", node] : [node])]); // spaces have no colour
  return make("div.flow", {
    role: "listbox", "aria-label": "Text, token by token", "aria-orientation": "horizontal",
    onpointerover: (event) => {
      const node = event.target.closest(".token");
      if (!node) return;
      showTip(told(node.index)[1], node);
      point(node.index);
    },
    onpointerleave: () => { hideTip(); point(null); },
    onfocusin: (event) => {
      const { index } = event.target;
      if (index === undefined) return;
      tokens[current].tabIndex = -1;
      tokens[current = index].tabIndex = 0;
      showTip(told(index)[1], event.target);
      point(index, { pinned: true });
      live.textContent = `${visible(trace.tokens[index])}, ${told(index).join(" ")}`;
    },
    onfocusout: hideTip,
    onkeydown: (event) => {
      const at = event.target.index;
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const row = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const next = step ? at + step : row ? inNextLine(tokens, at, row) : { Home: 0, End: tokens.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      tokens[next]?.focus();
    },
  }, ...parts);
}

/** What the margin says of a token: each score, of both models where they read the same. */
function readoutOf(trace, token) {
  const shown = traces.map((one) => [one, one === trace ? token : counterpart(token, trace, one)]).filter(([, at]) => at !== null);
  const heads = shown.length > 1 ? [make("thead", {}, make("tr", {}, make("td"), ...shown.map(([one]) => make("th", { scope: "col" }, one.short))))] : [];
  const keys = [...new Set(shown.flatMap(([one]) => Object.keys(one.scores)))].filter((key) => key !== "gain" || view.difference);
  return [make("p.word", {}, ...word(trace.tokens[token])),
    make("p.about", {}, `token ${token + 1} of ${trace.tokens.length}`),
    make("table", {}, ...heads, make("tbody", {}, ...keys.map((key) => {
      const score = shown.map(([one]) => one.scores[key]).find(Boolean);
      return make(key === view.score ? "tr.chosen" : "tr", {}, make("th", { scope: "row" }, key === "gain" ? "gain" : score.title),
        ...shown.map(([one, at]) => make("td", {}, one.scores[key] && (key !== "gain" || one === trace) ? say(one.scores[key].values[at], score) : "")));
    })))];
}

/** The scale as a strip of colour, with a histogram of the tokens' values above it. */
function histogram(scale, score, values) {
  const bins = range(40).map(() => 0);
  for (const value of values) if (value !== null) bins[Math.min(39, Math.floor(40 * scale.share(value)))]++;
  const most = Math.max(1, ...bins);
  const bars = bins.map((count, i) => make("i", { "--h": count ? Math.max(0.04, count / most) : 0, "--x": i / 40 }, make("u"), make("s")));
  bars.forEach((bar, i) => paint(bar, scale, scale.low + (i + 0.5) / 40 * (scale.high - scale.low)));
  const end = (value, beyond, sign) => (beyond ? sign : "") + say(value, score);
  return [make("div.histogram", { "aria-hidden": "true" }, ...bars, make("b")),
    make("p.ends", {}, make("span", {}, end(scale.low, scale.least < scale.low, "≤ ")),
      make("span", {}, scale.diverging ? "0" : `median ${say(scale.median, { ...score, unit: score.unit === "share" ? "share" : "" })}`),
      make("span", {}, end(scale.high, scale.most > scale.high, "≥ ")))];
}

/** Underlines the tokens of thoughts among `tokens`; returns the function that does so. */
function lighter(trace, tokens) {
  const lit = new Set();
  const highlight = ({ start, end }, name, weight) => {
    for (let t = start; t < end; t++) {
      const before = lit.has(tokens[t]) ? +tokens[t].style.getPropertyValue("--w") : 0;
      tokens[t].style.setProperty("--w", Math.max(weight, before));
      tokens[t].classList.add(name);
      lit.add(tokens[t]);
    }
  };
  return (thoughts) => {
    for (const node of lit) node.classList.remove("own", "read");
    lit.clear();
    for (const i of thoughts) {
      highlight(trace.thoughts[i], "own", 1);
      for (const reads of Object.values(trace.reads)) for (const [j, , width] of reads[i]) if (j !== i) highlight(trace.thoughts[j], "read", width);
    }
  };
}

function textPanel(trace) {
  const keys = Object.keys(trace.scores);
  if (!keys.includes(view.score)) [view.score] = keys;
  const tokens = range(trace.tokens.length).map((i) => tokenNode(trace, i));
  const told = (i) => {
    const score = trace.scores[view.score];
    return score ? [score.title, say(score.values[i], score)] : ["", ""];
  };
  const legend = make("div.legend"), about = make("p.about"), margin = make("aside.margin", { "aria-label": "Selected token" });

  function colour(key) {
    view.score = key;
    const score = trace.scores[key];
    if (!score) return;
    const scale = scaleOf(key);
    tokens.forEach((node, i) => paint(node, scale, score.values[i]));
    about.textContent = score.about;
    legend.replaceChildren(...histogram(scale, score, score.values));
    needle = (token) => {
      const value = token === null ? null : score.values[token];
      legend.classList.toggle("at", value != null);
      if (value != null) legend.style.setProperty("--at", scale.share(value));
    };
    readout(view.token);
  }
  let needle = () => {};
  function readout(token) {
    const none = token === null || token >= trace.tokens.length;
    needle(none ? null : token);
    margin.replaceChildren(...(none ? [make("p.about", {}, "Point at a token, or move through the text with the arrow keys.")] : readoutOf(trace, token)));
  }

  const panel = {
    node: section("Text", null,
      keys.length > 1 && !view.difference ? choose("Coloured by", keys.map((key) => [key, trace.scores[key].title]), view.score, (key) => { colour(key); remember(); }) : "",
      about, make("div.reading", {}, legend, flowOf(trace, tokens, told), margin),
      asTable(["token", ...keys.map((key) => trace.scores[key].title)],
        () => trace.tokens.map((token, i) => [visible(token), ...keys.map((key) => say(trace.scores[key].values[i], trace.scores[key]))]))),
    point(token) {
      readout(token);
      panel.light(token === null ? [] : trace.of[token]);
    },
    light: lighter(trace, tokens),
  };
  colour(view.difference ? "gain" : view.score);
  return panel;
}
