// -- passes through latents -------------------------------------------------------------------------------------------

/** More passes than this are shown in rows, with fewer tokens each. */
const MANY = 6;

/** Thoughts grouped by their first token, in the order of the text. */
function byStart(thoughts) {
  const groups = new Map();
  thoughts.forEach((thought) => groups.set(thought.start, [...(groups.get(thought.start) ?? []), thought]));
  return [...groups.values()];
}

/** The thoughts that are decoded to tokens, pass by pass. */
const passesOf = (trace) => byStart(trace.thoughts.filter(({ nearest }) => nearest.length));

/** The curves with a value for each pass, which are shown with it. */
const gatesOf = (trace) => Object.entries(trace.curves).filter(([, { along, values }]) => along === "pass" && values.length === passesOf(trace).length);

/** A model's answer to a question, marked if the right one is known. */
const marked = (answer) => make("p.written", {}, answer.answer || "–", ...(answer.right === null ? []
  : [make(`b.${answer.right ? "is-right" : "is-wrong"}`, {}, answer.right ? "✓ right" : "✗ wrong")]));

function answerOf({ answer }) {
  return make("div.answer", {}, make("h3", {}, "its answer"), marked(answer),
    ...(answer.right === false ? [make("p.about", {}, "the right answer: ", make("b", {}, answer.expected))] : []));
}

function passesPanel(trace) {
  const passes = passesOf(trace);
  if (!passes.length) return null;
  const gates = gatesOf(trace).map(([, gate]) => gate);
  let at = null;
  const heads = [...new Set(passes.flat().map(({ label }) => label || "latent"))];
  const nodes = passes.map((pass, n) => {
    const node = make("li", { tabindex: n ? -1 : 0 }, make("h3", {}, `pass ${n + 1}`),
      ...pass.flatMap(({ label, nearest }) => [...(heads.length > 1 ? [make("h4", {}, label || "latent")] : []), bars(nearest.map(([token, share]) => [word(token), share]), 1)]),
      ...(gates.length ? [make("dl.gates", {}, ...gates.flatMap((gate) => [make("dt", {}, gate.title), make("dd", {}, say(gate.values[n], gate))]))] : []));
    node.index = n;
    return node;
  });
  function show(n) {
    at = n;
    nodes.forEach((node, i) => { node.classList.toggle("here", i === n); });
  }
  const thoughtsOf = (n) => range(trace.thoughts.length).filter((i) => passes[n].includes(trace.thoughts[i]));
  const list = make(`ol.passes${passes.length > MANY ? ".many" : ""}`, {
    "aria-label": "Passes",
    onpointerover: (event) => {
      const node = event.target.closest("li[tabindex]");
      if (node && node.index !== at) { show(node.index); light(thoughtsOf(node.index)); }
    },
    onpointerleave: () => { show(null); light([]); },
    onfocusin: (event) => {
      nodes.forEach((node) => { node.tabIndex = node === event.target ? 0 : -1; });
      show(event.target.index);
      light(thoughtsOf(at));
      live.textContent = `pass ${at + 1}: ${passes[at].map(({ label, nearest }) => `${label || "latent"} ${nearest.map(([token, share]) => `${visible(token)} ${percent(share)}`).join(", ")}`).join("; ")}`;
    },
    onkeydown: (event) => walk(nodes, event.target.index, event, BOTH),
  }, ...nodes);
  return {
    node: section("Pass by pass", "Between question and answer the model reads vectors of its own instead of tokens. For each pass: the most likely tokens by the output embedding. A full bar is 100%.",
      make("div.from-to", {}, list, trace.answer ? answerOf(trace) : ""),
      asTable(["pass", "thought", "most likely tokens (probability)", ...gates.map(({ title }) => title)], () => passes.flatMap((pass, n) => pass.map(({ label, nearest }) =>
        [n + 1, label, nearest.map(([token, share]) => `${visible(token)} (${percent(share)})`).join(", "), ...gates.map((gate) => say(gate.values[n], gate))])))),
    point: (token) => show(token === null ? null : passes.findIndex(([{ start, end }]) => start <= token && token < end)),
  };
}
