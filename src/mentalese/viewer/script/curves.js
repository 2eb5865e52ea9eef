// -- curves -----------------------------------------------------------------------------------------------------------

const FROM_ZERO = ["layer", "block", "step"]; // the first value of steps is before the first one
const COUNTED = ["layer", "block", "pass", "thought", "turn"]; // what has no values in between

/** The ends of an axis: zero is one of them, or within; unless the values would fill less than a fifth of it. Bars
 * always begin at zero. */
function axisOf(values, asBars) {
  const least = Math.min(...values), most = Math.max(...values);
  const low = Math.min(0, least), high = Math.max(0, most);
  if (!asBars && most > least && most - least < 0.2 * (high - low)) return { low: least, high: most, cut: true };
  return { low, high: high === low ? low + 1 : high, cut: false };
}

function curvesPanel(trace, others) {
  const gates = new Set(gatesOf(trace).map(([key]) => key)); // shown pass by pass
  const drawn = Object.entries(trace.curves).filter(([key, { along, values }]) =>
    values.some((value) => value !== null) && !gates.has(key) && !(along === "stream" && trace.streams)); // the streams panel shows them
  if (!drawn.length) return null;
  return { node: section("Curves", trace.windows.length ? `Means over ${trace.windows.length} windows.` : null, make("div.curves", {}, ...drawn.map(([key, curve]) =>
    chart(curve, others.filter((other) => other.curves[key]?.values.length).map((other) => [other.short, other.curves[key].values])))),
  asTable(["curve", "values"], () => drawn.map(([, curve]) => [curve.title, curve.values.map((value) => value == null ? "–" : tidy(value)).join(", ")]))) };
}

/** The marks of a curve in a square of 100: a line, or bars, a `slot` for each place, where there are few points or
 * nothing between them. */
function marksOf(curve, others, slot, at, up) {
  const lines = [curve.values, ...others.map(([, values]) => values)];
  if (slot) {
    const width = Math.min(9, 0.6 * slot / lines.length);
    return lines.flatMap((values, n) => range(values.length).filter((i) => values[i] != null).map((i) => make(n ? "rect.other" : "rect", {
      x: at(i) + width * (n - lines.length / 2), y: Math.min(up(0), up(values[i])), width: 0.94 * width, height: Math.abs(up(0) - up(values[i])) })));
  }
  const path = (values) => values.map((value, i) => value == null ? "" : `${i && values[i - 1] != null ? "L" : "M"}${at(i).toFixed(2)} ${up(value).toFixed(2)}`).join("");
  const dots = curve.values.length > 40 ? "" : curve.values.map((value, i) => value == null ? "" : `M${at(i).toFixed(2)} ${up(value).toFixed(2)}h0`).join("");
  return [...others.map(([, values]) => make("path.line.other", { d: path(values) })), make("path.line", { d: path(curve.values) }), make("path.dots", { d: dots })];
}

/** A small chart under an invisible slider, so that pointer, keys and screen readers work alike. */
function chart(curve, others) {
  const known = [curve.values, ...others.map(([, values]) => values)].flat().filter((value) => value != null);
  const length = Math.max(curve.values.length, ...others.map(([, values]) => values.length));
  const asBars = length < 4 || (COUNTED.includes(curve.along) && length <= 24);
  const { low, high, cut } = axisOf(known, asBars);
  const first = FROM_ZERO.includes(curve.along) ? 0 : 1, slot = asBars ? 100 / length : 0;
  const at = (i) => asBars ? slot * (i + 0.5) : 100 * i / Math.max(1, length - 1);
  const up = (value) => 100 * (high - value) / (high - low);
  const hair = make("path.hair"), output = make("output");
  function show(i) {
    hair.setAttribute("d", asBars ? "" : `M${at(i)} 0V100`);
    output.textContent = `${curve.along || "place"} ${first + i}: ${say(curve.values[i], curve)}${others.map(([name, values]) => `, ${name} ${say(values[i], curve)}`).join("")}`;
    slider.setAttribute("aria-valuetext", output.textContent);
  }
  const calm = () => { output.textContent = ""; hair.setAttribute("d", ""); };
  const slider = make("input", { type: "range", min: 0, max: length - 1, value: 0, "aria-label": curve.title,
    oninput: () => show(+slider.value), onfocus: () => show(+slider.value), onblur: calm,
    onpointermove: (event) => {
      const box = slider.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
      slider.value = asBars ? clamp(Math.floor(share * length), 0, length - 1) : Math.round(share * (length - 1));
      show(+slider.value);
    },
    onpointerleave: () => document.activeElement === slider || calm() });
  const inside = low < 0 && high > 0 ? [make("path.zero", { d: `M0 ${up(0)}H100` })] : [];
  const ends = asBars ? range(length).map((i) => make("span", {}, `${first + i}`, ...(length < 9 ? [make("b", {}, say(curve.values[i], { unit: curve.unit === "share" ? "share" : "" }))] : [])))
    : [make("span", {}, `${curve.along} ${first}`.trim()), ...(cut ? [make("span.cut", {}, "axis cut, zero is outside")] : []), make("span", {}, first + length - 1)];
  return make(`figure${cut ? ".is-cut" : ""}`, {}, make("figcaption", {}, make("b", {}, curve.title, ...(asBars && !/ by /.test(curve.title) ? [make("small", {}, ` by ${curve.along || "place"}`)] : [])), output),
    make("div.chart", {}, make("span.high", {}, tidy(high)), make("span.low", {}, tidy(low)),
      make("div.plot", {}, make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, ...inside, hair, ...marksOf(curve, others, slot, at, up)), slider),
      make(asBars ? "p.axis.slots" : "p.axis", { "--n": length }, ...ends)),
    make("p.about", {}, curve.about, ...(others.length ? [` ${asBars ? "Pale bars" : "Thin line"}: ${others[0][0]}.`] : [])));
}
