// Sorts tables and shows the values of charts. Names in the data are untrusted: they are added as text only.
"use strict";

const { charts } = JSON.parse(document.getElementById("data").textContent);

// -- tables ----------------------------------------------------------------------------------------------------------

// Each header becomes a button: best first, then reversed, then the original order.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const written = [...body.rows];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const orders = "down" in head.dataset ? ["descending", "ascending"] : ["ascending", "descending"];
    button.addEventListener("click", () => {
      const order = [...orders, null][orders.indexOf(head.getAttribute("aria-sort")) + 1];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order) head.setAttribute("aria-sort", order);
      body.append(...(order ? sorted(written, column, order === "ascending" ? 1 : -1) : written));
    });
  });
}

function sorted(rows, column, sign) {
  const key = (row) => {
    const cell = row.cells[column];
    if (cell.tagName === "TH") return cell.textContent;
    return "number" in cell.dataset ? Number(cell.dataset.number) : null;
  };
  return [...rows].sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    if (left === null || right === null) return (left === null) - (right === null); // unknown values come last
    return sign * (typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right);
  });
}

// -- charts ----------------------------------------------------------------------------------------------------------

// A vertical line at one of the chart's stops; the labels show the models' values there instead of their last ones.
function readable(figure, { stops, lines }) {
  const [plot, ticks] = [figure.querySelector(".plot"), figure.querySelector(".x")];
  const labels = [...figure.querySelectorAll(".labels li")];
  const figures = labels.map((label) => label.firstChild.firstChild); // text that is changed in place: a new node would
  const last = labels.map((label, i) => [label.style.top, figures[i].data]); // cause all rules with :has() to be evaluated again
  const cross = shape("cross");
  const dots = lines.map((line) => shape(`dot read m${line.model}`));
  const place = document.createElement("output");
  place.append("");
  const slider = document.createElement("div");
  slider.className = "slider";
  slider.tabIndex = 0;
  slider.setAttribute("role", "slider");
  slider.setAttribute("aria-label", figure.querySelector("figcaption").firstChild.textContent.trim());
  slider.setAttribute("aria-valuemin", 0);
  slider.setAttribute("aria-valuemax", stops.length - 1);
  figure.querySelector(".chart").append(slider);
  let at = stops.length - 1;
  tell();

  function tell() {
    const values = lines.map(({ name, text, runs }) =>
      text[at] === null ? `${name} not yet` : `${name} ${text[at]}${at < runs ? "" : ", ended"}`);
    slider.setAttribute("aria-valuenow", at);
    slider.setAttribute("aria-valuetext", `${stops[at][1]}: ${values.join("; ")}`);
  }

  function show(stop) {
    at = Math.max(0, Math.min(stops.length - 1, stop));
    const [x, words] = stops[at];
    if (!cross.isConnected) {
      figure.classList.add("followed");
      plot.append(cross, ...dots);
      ticks.append(place);
    }
    cross.setAttribute("d", `M${x} 0V${plot.viewBox.baseVal.height}`);
    place.firstChild.data = words;
    place.style.left = `clamp(24px, ${x / 10}%, 100% - 24px)`;
    lines.forEach((line, i) => {
      const y = line.y[at];
      dots[i].setAttribute("d", y === null ? "" : `M${x} ${y}h0`);
      labels[i].hidden = y === null;
      labels[i].classList.toggle("ended", at >= line.runs);
      figures[i].data = line.text[at] ?? "";
      labels[i].style.top = `${line.place[at]}px`;
    });
    tell();
  }

  function leave() {
    figure.classList.remove("followed");
    [cross, place, ...dots].forEach((node) => node.remove());
    labels.forEach((label, i) => {
      label.hidden = false;
      label.classList.remove("ended");
      [label.style.top, figures[i].data] = last[i];
    });
  }

  function nearest(event) {
    const box = plot.getBoundingClientRect();
    const x = (1000 * (event.clientX - box.left)) / box.width;
    return stops.reduce((best, [stop], i) => (Math.abs(stop - x) < Math.abs(stops[best][0] - x) ? i : best), 0);
  }

  const keys = {
    ArrowLeft: () => at - 1, ArrowDown: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => at + 1,
    PageDown: () => at - 10, PageUp: () => at + 10, Home: () => 0, End: () => stops.length - 1,
  };
  slider.addEventListener("pointermove", (event) => show(nearest(event)));
  slider.addEventListener("pointerdown", (event) => show(nearest(event)));
  slider.addEventListener("pointerleave", (event) => event.pointerType === "touch" || leave()); // on touch screens the values stay
  slider.addEventListener("focus", () => slider.matches(":focus-visible") && show(at));
  slider.addEventListener("blur", leave);
  slider.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(keys[event.key]());
  });
}

function shape(kind) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("class", kind);
  return path;
}

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".charts figure").forEach((figure, i) => readable(figure, charts[i]));
document.querySelectorAll("[data-script]").forEach((note) => { note.hidden = false; });
