// -- saving a panel as a picture --------------------------------------------------------------------------------------
// What is on the screen is drawn again as SVG: boxes, borders and text of HTML, and the SVG inside it. No picture of
// the page is taken, so that text stays text and lines stay sharp.

const UNSAVED = "details, .save, input, .unseen, button.plain";
const DRAWING = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "vector-effect", "text-anchor", "font-family", "font-size", "font-weight"];
const PAD = 24, SHARP = 2;
const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const plainColours = new Map();

/** A computed colour as [rgb(), alpha], which every program reads; null if nothing is seen of it. */
function plainColour(colour) {
  if (!plainColours.has(colour)) {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pixel.getImageData(0, 0, 1, 1).data;
    plainColours.set(colour, alpha ? [`rgb(${red},${green},${blue})`, +(alpha / 255).toFixed(3)] : null);
  }
  return plainColours.get(colour);
}

const boxOf = (rect, from) => ({ x: +(rect.left - from.x).toFixed(2), y: +(rect.top - from.y).toFixed(2), width: +rect.width.toFixed(2), height: +rect.height.toFixed(2) });

/** Background and borders of an element, for each line that it is on. */
function drawBox(node, style, into, from) {
  const ground = plainColour(style.backgroundColor);
  const sides = ["Top", "Right", "Bottom", "Left"].map((side) => [side, parseFloat(style[`border${side}Width`]), plainColour(style[`border${side}Color`])])
    .filter(([side, width, colour]) => width && colour && style[`border${side}Style`] !== "none");
  if (!ground && !sides.length) return;
  for (const rect of node.getClientRects()) {
    const { x, y, width, height } = boxOf(rect, from);
    const radius = style.borderTopLeftRadius.endsWith("%") ? Math.min(width, height) / 2 : parseFloat(style.borderTopLeftRadius) || 0;
    const round = sides.length === 4 && radius;
    if (ground || round) into.append(make("rect", { x, y, width, height, rx: radius, fill: ground ? ground[0] : "none", "fill-opacity": ground?.[1],
      ...(round ? { stroke: sides[0][2][0], "stroke-width": sides[0][1], "stroke-dasharray": style.borderTopStyle === "dashed" ? "2 2" : null } : {}) }));
    if (round) continue;
    for (const [side, thick, [colour, alpha]] of sides) into.append(make("rect", {
      x: side === "Right" ? x + width - thick : x, y: side === "Bottom" ? y + height - thick : y,
      width: /Top|Bottom/.test(side) ? width : thick, height: /Top|Bottom/.test(side) ? thick : height, fill: colour, "fill-opacity": alpha }));
  }
}

/** The lines of a text node: [text, rectangle]. */
function linesOf(text) {
  const part = document.createRange();
  part.selectNodeContents(text);
  const rects = [...part.getClientRects()];
  if (!rects.length) return [];
  if (rects.every((rect) => Math.abs(rect.top - rects[0].top) < 2)) return [[text.data, part.getBoundingClientRect()]];
  const lines = [];
  for (let i = 0; i < text.data.length; i++) {
    part.setStart(text, i);
    part.setEnd(text, i + 1);
    const rect = part.getClientRects()[0];
    if (!rect?.width) continue;
    const line = lines.at(-1);
    if (line && Math.abs(line[1].top - rect.top) < 2) { line[0] += text.data[i]; line[1] = new DOMRect(line[1].left, line[1].top, rect.right - line[1].left, line[1].height); }
    else lines.push([text.data[i], rect]);
  }
  return lines;
}

function drawText(node, style, into, from) {
  const colour = plainColour(style.color);
  if (!colour) return;
  pixel.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = pixel.measureText("x");
  for (const [words, rect] of linesOf(node)) {
    const text = words.replace(/\s+/g, " ").trim(), { x, y, height } = boxOf(rect, from);
    if (!text || !rect.width) continue;
    const space = pixel.measureText(" ").width, isIndented = /^\s/.test(words) && rect.width > pixel.measureText(text).width + 0.6 * space;
    into.append(make("text", { x: +(x + (isIndented ? space : 0)).toFixed(2), y: +(y + (height - up - down) / 2 + up).toFixed(2), fill: colour[0], "fill-opacity": colour[1],
      "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight }, text));
  }
}

/** A copy of an SVG element whose style is in its attributes. */
function copyDrawing(node) {
  const copy = node.cloneNode(false), style = getComputedStyle(node);
  copy.removeAttribute("class");
  copy.removeAttribute("style");
  for (const name of DRAWING) {
    const value = style.getPropertyValue(name);
    const colour = ["fill", "stroke"].includes(name) && value !== "none" ? plainColour(value) ?? ["none", 1] : null;
    copy.setAttribute(name, colour ? colour[0] : value);
    if (colour && colour[1] < 1) copy.setAttribute(`${name}-opacity`, colour[1]);
  }
  copy.append(...[...node.childNodes].map((child) => child.nodeType === Node.ELEMENT_NODE ? copyDrawing(child) : child.cloneNode()));
  return copy;
}

function drawElement(node, into, from) {
  const style = getComputedStyle(node);
  if (node.matches(UNSAVED) || style.display === "none" || style.visibility === "hidden" || +style.opacity === 0) return;
  if (+style.opacity < 1) into.append(into = make("g", { opacity: style.opacity }));
  const box = boxOf(node.getBoundingClientRect(), from);
  if (node.tagName === "svg") {
    const copy = copyDrawing(node);
    for (const [key, value] of Object.entries(box)) copy.setAttribute(key, value);
    copy.setAttribute("overflow", style.overflowX === "visible" ? "visible" : "hidden");
    into.append(copy);
    return;
  }
  drawBox(node, style, into, from);
  if (style.overflowX !== "visible" && style.display !== "inline") { // what is scrolled out of sight is left out
    into.append(into = make("svg", { ...box, overflow: "hidden" }));
    from = { x: from.x + box.x, y: from.y + box.y };
  }
  for (const child of node.childNodes) {
    if (child.nodeType === Node.ELEMENT_NODE) drawElement(child, into, from);
    else if (child.nodeType === Node.TEXT_NODE) drawText(child, style, into, from);
  }
}

/** A panel as it is shown, as an SVG document of its own. */
function pictureOf(panel) {
  const frame = panel.getBoundingClientRect(), style = getComputedStyle(document.body);
  const last = [...panel.children].filter((node) => !node.matches(UNSAVED)).at(-1).getBoundingClientRect();
  const width = Math.ceil(frame.width + 2 * PAD), height = Math.ceil(last.bottom - frame.top + 2 * PAD);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": style.fontFamily });
  svg.append(make("rect", { width, height, fill: plainColour(style.backgroundColor)?.[0] ?? "rgb(255,255,255)" }));
  drawElement(panel, svg, { x: frame.left - PAD, y: frame.top - PAD });
  return svg;
}

/** An SVG document as text, without the characters that XML forbids. */
const xmlOf = (svg) => new XMLSerializer().serializeToString(svg).replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\p{Surrogate}]/gu, "\ufffd");

async function pngOf(svg) {
  for (const node of svg.querySelectorAll("[vector-effect=non-scaling-stroke]")) node.setAttribute("stroke-width", SHARP * parseFloat(node.getAttribute("stroke-width")));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(xmlOf(svg))}`;
  await image.decode();
  const canvas = make("canvas", { width: SHARP * svg.getAttribute("width"), height: SHARP * svg.getAttribute("height") });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

async function savePicture(panel, title, kind) {
  const svg = pictureOf(panel);
  const blob = kind === "png" ? await pngOf(svg) : new Blob([xmlOf(svg)], { type: "image/svg+xml" });
  const name = `${traces[view.trace].name}-${title}`.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
  const link = make("a", { href: URL.createObjectURL(blob), download: `${name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const saveButtons = (panel, title) => make("span.save", {}, "save as ", ...["svg", "png"].map((kind) =>
  make("button.plain", { type: "button", "aria-label": `Save “${title}” as ${kind.toUpperCase()}`, title: "as it is shown", onclick: () => savePicture(panel, title, kind) }, kind.toUpperCase())));
