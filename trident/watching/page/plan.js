// The plan as a drawing: nodes in layers by their depth, from left to right, on a narrow screen from top to bottom.

import { el, rate, svg } from "./words.js";

const HEIGHT = 46, GAP_ACROSS = 22, GAP_ALONG = 104, GAP_DOWN = 54, EDGE = 14;
const KINDS = { spout: "spout", Spark: "by Spark", Python: "your functions", repartition: "moves rows", state: "state" };

function label(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

function laidOut(group, narrow, room) {
  const layers = [];
  for (const node of group.nodes) (layers[node.depth] ??= []).push(node);
  const most = Math.max(...layers.map((layer) => layer?.length ?? 0));
  const fitting = (room - 2 * EDGE - (most - 1) * GAP_ACROSS) / most;
  const width = narrow ? Math.min(160, Math.max(100, Math.floor(fitting))) : 158;
  const along = narrow ? HEIGHT + GAP_DOWN : width + GAP_ALONG;
  const across = narrow ? width + GAP_ACROSS : HEIGHT + GAP_ACROSS;
  const places = new Map();
  const parents = new Map();
  for (const edge of group.edges) parents.set(edge.to, [...(parents.get(edge.to) ?? []), edge.from]);
  layers.forEach((layer, depth) => {
    const centre = (node) => {
      const above = (parents.get(node.id) ?? []).map((id) => places.get(id)?.rank ?? 0);
      return above.length ? above.reduce((sum, one) => sum + one, 0) / above.length : 0;
    };
    const ordered = [...layer].sort((one, other) => centre(one) - centre(other));
    ordered.forEach((node, at) => {
      const rank = at + (most - ordered.length) / 2;
      places.set(node.id, narrow ? { x: EDGE + rank * across, y: EDGE + depth * along, rank } : { x: EDGE + depth * along, y: EDGE + rank * across, rank });
    });
  });
  const wide = narrow ? most * across - GAP_ACROSS : layers.length * along - GAP_ALONG;
  const high = narrow ? layers.length * along - GAP_DOWN : most * across - GAP_ACROSS;
  return { places, node_width: width, width: wide + 2 * EDGE, height: high + 2 * EDGE };
}

export class PlanDrawing {
  constructor(parent, note) {
    this.parent = parent;
    this.note = note;
    this.rates = [];
    this.plan = null;
    this.narrow = null;
  }

  show(plan) {
    const narrow = this.parent.clientWidth < 640;
    const same = this.plan && JSON.stringify(plan) === JSON.stringify(this.plan) && narrow === this.narrow;
    this.plan = plan;
    this.narrow = narrow;
    if (same) return;
    this.rates = [];
    this.parent.replaceChildren(...plan.groups.map((group) => this.group(group, narrow, plan.groups.length > 1)));
    const kinds = [...new Set(plan.groups.flatMap((group) => group.nodes.map((node) => node.kind)))];
    const keys = kinds.map((kind) => el("span", {}, el("span", { class: `key key-${kind}` }), `${KINDS[kind] ?? kind}  `));
    const known = "Rows a second are known where rows come from spouts and where they are written to states, and not between.";
    this.note.replaceChildren(...keys, el("br"), document.createTextNode(plan.note ?? known));
  }

  resized() {
    if (this.plan && this.parent.clientWidth < 640 !== this.narrow) this.show(this.plan);
  }

  group(group, narrow, titled) {
    const { places, node_width, width, height } = laidOut(group, narrow, this.parent.clientWidth);
    const words = group.edges.filter((edge) => !edge.reads).map((edge) => `${this.name(group, edge.from)} to ${this.name(group, edge.to)}`);
    const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Plan of batch group ${group.name}: ${words.join("; ")}` });
    const streams = group.nodes.filter((node) => node.stream).length;
    const box = { width: node_width, narrow };
    for (const edge of group.edges) this.edge(drawing, group, edge, places, box, streams);
    for (const node of group.nodes) drawing.append(this.node(node, places.get(node.id), node_width));
    for (const one of this.rates) if (one.group === group) drawing.append(one.ground, one.text);
    const title = titled ? el("h3", {}, `Batch group ${group.name}`) : "";
    return el("div", {}, title, el("div", { class: "plan-scroll", tabindex: "0", role: "region", "aria-label": `Plan of batch group ${group.name}` }, drawing));
  }

  name(group, id) {
    return group.nodes.find((node) => node.id === id)?.label ?? id;
  }

  node(node, place, width) {
    const first = node.state ?? node.label;
    const second = node.state ? node.label : node.stream ? `stream ${node.stream}` : node.location ?? "";
    return svg("g", {}, svg("title", {}, `${node.label} ${node.location ?? ""}`),
      svg("rect", { class: `node kind-${node.kind}`, x: place.x, y: place.y, width, height: HEIGHT, rx: node.kind === "state" ? 14 : 6 }),
      svg("text", { x: place.x + 10, y: place.y + 20 }, label(first, Math.floor((width - 16) / 6.8))),
      svg("text", { class: "small", x: place.x + 10, y: place.y + 36 }, label(second, Math.floor((width - 16) / 5.8))));
  }

  edge(drawing, group, edge, places, box, streams) {
    const from = places.get(edge.from), to = places.get(edge.to);
    const a = box.narrow ? [from.x + box.width / 2, from.y + HEIGHT] : [from.x + box.width, from.y + HEIGHT / 2];
    const b = box.narrow ? [to.x + box.width / 2, to.y] : [to.x, to.y + HEIGHT / 2];
    const bend = box.narrow ? [a[0], (a[1] + b[1]) / 2, b[0], (a[1] + b[1]) / 2] : [(a[0] + b[0]) / 2, a[1], (a[0] + b[0]) / 2, b[1]];
    const line = svg("path", { class: edge.reads ? "edge reads" : "edge", d: `M${a} C${bend[0]},${bend[1]} ${bend[2]},${bend[3]} ${b}` });
    const tip = box.narrow ? `${b[0]},${b[1]} ${b[0] - 4},${b[1] - 8} ${b[0] + 4},${b[1] - 8}` : `${b[0]},${b[1]} ${b[0] - 8},${b[1] - 4} ${b[0] - 8},${b[1] + 4}`;
    drawing.append(line, svg("polygon", { class: "arrow", points: tip }));
    if (edge.reads) return;
    const source = group.nodes.find((node) => node.id === edge.from), target = group.nodes.find((node) => node.id === edge.to);
    const of = target.state ? { state: target.state } : source.stream && streams === 1 ? { spout: true } : null;
    if (!of) return;
    const middle = [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
    const text = svg("text", { class: "small rate", x: middle[0], y: middle[1] + 4, "text-anchor": "middle" });
    const ground = svg("rect", { class: "rate-ground", x: middle[0] - 33, y: middle[1] - 8, width: 66, height: 16, rx: 3, visibility: "hidden" });
    this.rates.push({ ...of, group, line, text, ground });
  }

  showRates(rates) {
    for (const one of this.rates) {
      const value = one.state ? rates.states?.[one.state] : rates.groups?.[one.group.name];
      const text = value === undefined || value === null ? "" : `${rate(value)} rows/s`;
      if (one.text.textContent !== text) one.text.textContent = text;
      one.ground.setAttribute("visibility", text ? "visible" : "hidden");
      one.line.classList.toggle("busy", value > 0);
    }
  }
}
