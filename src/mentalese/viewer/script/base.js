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

const percent = (share) => share > 0 && share < 0.0005 ? "<0.1%" : `${+(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)}%`;
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

/** A panel, which can be saved as a picture. */
function section(title, about, ...children) {
  const id = title.toLowerCase().replace(/\W+/g, "-");
  const node = make("section", { id, "aria-labelledby": `${id}-title` });
  node.append(make("div.head", {}, make("h2", { id: `${id}-title` }, title), saveButtons(node, title)),
    ...(about ? [make("p.about", {}, about)] : []), ...children);
  return node;
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

/** Rows of a word, a bar from zero and a value; `most` is the value of a full bar. */
function bars(rows, most) {
  return make("ol.bars", {}, ...rows.map(([name, value, words = percent(value)]) => make("li", {}, make("span.name", {}, ...[name].flat()),
    make("span.track", { "aria-hidden": "true" }, make("i.bar", { "--h": clamp(value / most, 0, 1).toFixed(4) })), make("span.value", {}, words))));
}

/** Keys that move between the items of a list, of which one can be reached by Tab. */
function walk(nodes, at, event, keys) {
  const step = keys[event.key];
  if (!step) return;
  event.preventDefault();
  nodes[at + step]?.focus();
}
const BOTH = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
