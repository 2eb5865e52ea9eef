// -- the page ---------------------------------------------------------------------------------------------------------

function facts(trace) {
  const surprisal = askedOf(trace).map((i) => trace.scores.surprisal.values[i]);
  const rows = [["model", trace.name], ["tokens", trace.tokens.length.toLocaleString("en")]];
  if (trace.parameters) rows.splice(1, 0, ["parameters", trace.parameters.toLocaleString("en")]);
  if (surprisal.length && !trace.answer) rows.push(["mean surprisal", `${tidy(mean(surprisal))} nats`]);
  return make("dl.facts", {}, ...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/** How a text that is longer than the model's context was read. */
function windowsNote({ windows }) {
  if (!windows.length) return [];
  const [start, first] = windows[1], longest = Math.max(...windows.map(([from, , to]) => to - from));
  return [make("p.about", {}, `Longer than the model's context, so it is read as it is scored: in ${plural(windows.length, "window")} of up to ${plural(longest, "token")}, each with the last ${plural(first - start, "token")} of the one before as context. A small number in the text marks where a window begins.`)];
}

/** Panels of one model: the thought first, then the text that it is about, then the rest. */
function panelsOf(trace, others) {
  const thought = [sentencesPanel(trace), streamsPanel(trace), passesPanel(trace), chunksPanel(trace)].filter(Boolean);
  const readings = readingsPanel(trace);
  if (!thought.length && trace.readings.length > 1) thought.push(readings); // what the thoughts of a whole text hold
  const whole = thought.includes(readings), curves = curvesPanel(trace, others);
  return [...thought, whole ? curves : null, textPanel(trace), ...(whole ? [] : [readings, curves])].filter(Boolean);
}

const head = make("div"), body = make("div");

function draw() {
  const trace = traces[view.trace], others = traces.filter((other) => other !== trace);
  hideTip();
  const lead = view.difference ? `Blue: lower surprisal ${under(trace)}. Orange: lower surprisal ${under(traces[1])}.` : trace.about || "A model without latent thoughts.";
  head.replaceChildren(make("p.lead", {}, lead),
    ...(view.difference ? [] : [...(trace.answer && !passesOf(trace).length ? [answerOf(trace)] : []), facts(trace), ...windowsNote(trace)]));
  panels = view.difference ? [textPanel(trace), gainPanel(trace, traces[1])].filter(Boolean) : panelsOf(trace, others);
  body.replaceChildren(...panels.map(({ node }) => node));
  if (view.token !== null && view.token < trace.tokens.length) point(view.token, { pinned: true });
}

/** The choice of a model, or of their difference. */
function switcher() {
  const options = traces.map((trace, i) => [String(i), trace.short]);
  if (traces[0].scores.gain) options.push(["difference", "difference"]);
  return choose("Model", options, view.difference ? "difference" : String(view.trace), (value) => {
    if (!view.difference) view.kept = view.score;
    const before = traces[view.trace];
    view.difference = value === "difference";
    view.trace = view.difference ? 0 : +value;
    if (view.token !== null && before !== traces[view.trace]) view.token = counterpart(view.token, before, traces[view.trace]);
    view.score = view.difference ? "gain" : view.kept ?? "";
    draw();
    remember();
  });
}

/** Shows a payload, in place of the one before. */
function show(payload) {
  page = payload;
  traces = page.traces;
  traces.forEach(prepare);
  traces.alike = countAlike();
  const created = page.created ? new Date(page.created) : null;
  view.trace = Math.min(view.trace, traces.length - 1);
  if (view.token >= traces[view.trace].tokens.length) view.token = null; // of a longer text before
  document.querySelector("main").replaceChildren(
    make("header", {}, make("div", {}, make("p.kind", {}, "Mentalese · what a model thinks"), make("h1", {}, page.title), traces.length > 1 ? switcher() : "", head),
      traces.length > 1 ? verdictOf(traces) : ""), body,
    ...(page.command ? [make("footer", {}, make("h2", {}, "Provenance"), make("pre", { tabindex: 0 }, page.command),
      make("p.about", {}, `Created ${created && !isNaN(created) ? `${created.toISOString().slice(0, 16).replace("T", " ")} UTC ` : ""}by Mentalese. What is chosen on this page is in its address, so that a link leads to it.`))] : []),
    live, tip);
  draw();
}

/** What is scrolled stays where it is; at its end, or not scrolled at all, it follows the text that grows. */
function inPlace(act) {
  const boxes = () => [".streams", ".links"].map((name) => document.querySelector(name));
  const before = boxes().map((box) => box && { left: box.scrollLeft, top: box.scrollTop,
    right: box.scrollLeft + box.clientWidth > box.scrollWidth - 4, bottom: box.scrollTop + box.clientHeight > box.scrollHeight - 4 });
  act();
  boxes().forEach((box, n) => { if (box && before[n]) box.scrollTo(before[n].right ? box.scrollWidth : before[n].left, before[n].bottom ? box.scrollHeight : before[n].top); });
}

page = JSON.parse(document.getElementById("data").textContent);
traces = page.traces;
recall();
show(page);
addEventListener("hashchange", () => { recall(); show(page); });
addEventListener("scroll", hideTip, { passive: true });
// In a frame, the page around it may send another payload, as the text grows.
document.documentElement.classList.toggle("framed", parent !== window);
addEventListener("message", (event) => { if (event.source === parent && event.data?.traces) inPlace(() => show(event.data)); });
performance.mark("ready");
document.documentElement.dataset.ready = "yes";
