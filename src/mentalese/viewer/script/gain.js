// -- two models -------------------------------------------------------------------------------------------------------

const CLEAR = 0.01; // nats; smaller differences are not listed, and have little colour
const ROUNDING = 1e-6; // nats; means of float32 scores differ by less when nothing differs

/** "for gpt2", "without thoughts". */
const under = ({ short }) => page.control ? short : `for ${short}`;

/** The answers of both models; without, their mean surprisal on the tokens that both read, as bars from zero. */
function verdictOf([one, other]) {
  if (one.answer && other.answer) {
    const same = one.answer.answer === other.answer.answer;
    return make("div.verdict.answer", {}, make("p", {}, make("b", {}, same ? "Both answers are the same" : page.control ? "Its thoughts change the answer" : "The answers differ")),
      ...[one, other].flatMap(({ short, answer }) => [make("h3", {}, short), marked(answer)]));
  }
  const known = range(one.tokens.length).filter((i) => one.scores.gain?.values[i] != null);
  if (!known.length) return make("div.verdict", {}, make("p.about", {}, page.note));
  const values = one.scores.surprisal.values, own = mean(known.map((i) => values[i])), gain = mean(known.map((i) => one.scores.gain.values[i]));
  const costs = [own, own + gain], most = Math.max(...costs, 1e-9);
  const size = `${tidy(Math.abs(gain))} nats a token`;
  const words = page.unlike ? "Mean surprisal" : Math.abs(gain) < ROUNDING ? "Both find this text equally surprising"
    : page.control ? `${gain > 0 ? "Its thoughts save" : "Its thoughts cost"} ${size} here`
    : `A token costs ${one.short} ${size.replace(" a token", "")} ${gain > 0 ? "less" : "more"} than ${other.short}`;
  return make("div.verdict", {}, make("p", {}, make("b", {}, words)),
    bars([[one.short, costs[0], `${tidy(costs[0])} nats`], [other.short, costs[1], `${tidy(costs[1])} nats`]], most),
    make("p.about", {}, `${page.unlike ? "Of" : "Mean surprisal of"} ${plural(known.length, "token")} of this one text. ${page.note}`.trim()));
}

function gainPanel(trace, other) {
  const { values } = trace.scores.gain;
  const known = range(values.length).filter((i) => values[i] !== null);
  if (!known.length) return null;
  const sorted = [...known].sort((a, b) => values[b] - values[a]);
  const average = mean(known.map((i) => values[i]));
  const clear = sorted.filter((i) => Math.abs(values[i]) >= CLEAR);
  const better = known.filter((i) => values[i] > ROUNDING).length;
  const list = (title, picked) => make("div", {}, make("h3", {}, title), ...(picked.length ? [] : [make("p.about", {}, "none")]), make("ol.tokens", {}, ...picked.map((i) => make("li", {},
    make("button", { type: "button", onclick: () => document.querySelectorAll(".flow .token")[i].focus() },
      make("span", {}, ...word(trace.tokens[i])), make("small", {}, `…${excerpt(trace, Math.max(0, i - 8), i).slice(-34)}`)),
    make("span.value", {}, say(values[i], trace.scores.gain))))));
  return { node: section("Where they differ",
    `Mean surprisal is ${Math.abs(average) < ROUNDING ? `the same ${under(trace)} and ${under(other)}` : `${tidy(Math.abs(average))} nats ${average < 0 ? "higher" : "lower"} ${under(trace)} than ${under(other)}`}; it is lower ${under(trace)} on ${percent(better / known.length)} of ${plural(known.length, "token")}. Differences of ${CLEAR} nats or more, the largest first:`,
    make("div.pair", {}, list(`Lower ${under(trace)}`, clear.filter((i) => values[i] > 0).slice(0, 8)),
      list(`Lower ${under(other)}`, clear.filter((i) => values[i] < 0).slice(-8).reverse()))) };
}
