// -- what the model would write ---------------------------------------------------------------------------------------

/** The tokens of the text that the model was to predict: those with a surprisal, its own answer not among them. */
function askedOf(trace) {
  const end = trace.answer?.start ?? trace.tokens.length, { surprisal } = trace.scores;
  return trace.text.filter((i) => i < end && surprisal?.values[i] != null);
}

function readingsPanel(trace) {
  const { readings } = trace;
  if (!readings.length) return null;
  const end = trace.answer?.start ?? trace.tokens.length;
  const shownTokens = trace.text.filter((i) => i < end), asked = askedOf(trace), isAsked = new Set(asked);
  const isRight = ({ right }, i) => isAsked.has(i) && right[i];
  const counts = readings.map((reading) => asked.filter((i) => isRight(reading, i)).length);
  const counted = (n) => `${counts[n].toLocaleString("en")} of ${plural(asked.length, "token")}`;
  // Lines break as in the text; a token that was given is a dot.
  const shown = (token, i) => (!isAsked.has(i) ? "·" : i === shownTokens[0] ? token.trimStart() : /^<\|.*\|>$/.test(token) ? mark(token) : token.replaceAll("\n", "↵")) + (trace.tokens[i].includes("\n") ? "\n" : "");
  const words = shownTokens.map((i) => { const node = make("span"); node.index = i; return node; });
  const text = make("p.filled", {
    onpointerover: (event) => event.target.index !== undefined && point(event.target.index),
    onpointerleave: () => point(null),
  }, ...words);
  const output = make("output");
  function show(at) {
    words.forEach((node) => {
      node.textContent = shown(readings[at].tokens[node.index], node.index);
      node.className = isRight(readings[at], node.index) ? "right" : "";
    });
    output.replaceChildren(make("b", {}, readings[at].title), ` · ${counted(at)} right${trace.answer ? ", its own answer not counted" : ""}`);
  }
  const options = readings.map(({ title }, n) => [String(n), make("span.level", {}, make("span.name", {}, title),
    make("span.track", { "aria-hidden": "true" }, make("i.bar", { "--h": (counts[n] / Math.max(1, asked.length)).toFixed(4) })), make("span.value", {}, percent(counts[n] / Math.max(1, asked.length))))]);
  const first = Math.min(view.reading ?? readings.length - 1, readings.length - 1);
  show(first);
  const several = readings.length > 1;
  const node = section("What the model would write",
    `The model's own token at each place: dark if it matches the text, faint if not.${several ? " Bars: the share of tokens that it gets right, of all of them, with more of its thoughts each time." : ""}`,
    make(several ? "div.levels" : "div", {}, several ? choose("Written with", options, String(first), (n) => { view.reading = +n; show(+n); remember(); }) : "", make("div", {}, output, text)),
    asTable(["token", ...readings.map(({ title }) => title)], () => shownTokens.map((i) => [visible(trace.tokens[i]), ...readings.map(({ tokens }) => isAsked.has(i) ? visible(tokens[i]) : "–")])));
  return { node, point: (token) => words.forEach((word) => word.classList.toggle("pointed", word.index === token)) };
}
