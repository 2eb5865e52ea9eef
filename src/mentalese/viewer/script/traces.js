// -- the traces and the state that panels share -----------------------------------------------------------------------

let page, traces;
const view = { trace: 0, score: "", difference: false, token: null, reading: null };
const live = make("p.unseen", { "aria-live": "polite" });
const tip = make("div.tip", { "aria-hidden": "true", hidden: true });
let panels = [];

/** Thoughts by token, links by thought. */
function prepare(trace) {
  const length = trace.tokens.length;
  trace.text = range(length).filter((i) => !trace.special[i]);
  trace.of = range(length).map(() => []); // token -> its thoughts, except those of the whole text
  trace.thoughts.forEach(({ start, end }, i) => {
    if (end - start < length) for (let t = start; t < end; t++) trace.of[t].push(i);
  });
  trace.reads = {}; // link -> thought -> [[thought, weight, width], ...], widest first; a full width is 1
  trace.readBy = {};
  for (const [key, { edges, unit }] of Object.entries(trace.links)) {
    const most = unit === "share" ? 1 : Math.max(...edges.map(([, , weight]) => Math.abs(weight)));
    const lists = [trace.reads[key], trace.readBy[key]] = range(2).map(() => trace.thoughts.map(() => []));
    for (const [i, j, weight] of edges) {
      lists[0][i].push([j, weight, Math.abs(weight) / most]);
      lists[1][j].push([i, weight, Math.abs(weight) / most]);
    }
    for (const list of lists.flat()) list.sort((a, b) => b[2] - a[2]);
  }
}

/** The place of this token of the text in the other trace; null if it is missing or follows other tokens there. */
function counterpart(token, trace, other) {
  const place = trace.text.indexOf(token);
  return place >= 0 && place < traces.alike ? other.text[place] : null;
}

/** The number of tokens at the start of the text that are the same in all traces. */
function countAlike() {
  const [{ text, tokens }] = traces;
  const apart = text.findIndex((token, place) => traces.some((other) => other.tokens[other.text[place]] !== tokens[token]));
  return apart < 0 ? text.length : apart;
}

/** The scale of colours: the same for both models, from the 2nd to the 98th percentile of the values; of differences at
 * least `CLEAR` to both sides, so that rounding has no colour. */
function scaleOf(key) {
  const scores = traces.map((trace) => trace.scores[key]).filter(Boolean);
  const values = scores.flatMap((score) => score.values).filter((value) => value !== null).sort((a, b) => a - b);
  const at = (share) => values[Math.round(share * (values.length - 1))] ?? 0;
  let [low, high] = [at(0.02), at(0.98)];
  if (low === high) [low, high] = [at(0), at(1)];
  const diverging = scores[0].diverging;
  if (diverging) [low, high] = [-1, 1].map((sign) => sign * Math.max(-low, high, CLEAR));
  else if (low > 0) low = 0;
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

/** Tells the panels which token the pointer or the keyboard is at; null: none. */
function point(token, { pinned = false } = {}) {
  if (pinned) { view.token = token; remember(); }
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

// -- the state in the page's address ----------------------------------------------------------------------------------

/** Writes what is chosen behind the `#` of the address, so that a link leads to it; a frame has no address. */
function remember() {
  if (location.protocol === "about:") return;
  const state = { model: view.difference ? "difference" : view.trace || "", score: view.score, token: view.token ?? "", reading: view.reading ?? "" };
  const words = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""));
  history.replaceState(null, "", `#${words}`);
}

/** Reads it back; what the traces do not have is ignored. */
function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  const number = (name, count) => { const value = parseInt(state.get(name), 10); return value >= 0 && value < count ? value : null; };
  view.difference = state.get("model") === "difference" && Boolean(traces[0].scores.gain);
  view.trace = number("model", traces.length) ?? 0;
  view.score = state.get("score") in traces[view.trace].scores ? state.get("score") : "";
  view.token = number("token", traces[view.trace].tokens.length);
  view.reading = number("reading", traces[view.trace].readings.length);
}
