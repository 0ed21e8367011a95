// Numbers and moments as words, and elements made of text alone: nothing of the data is ever read as HTML.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The children of an element, one for each item: those that are there stay, with their focus and what is open in them.
export function keyed(parent, items, key, make, update = () => {}) {
  const there = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const name = String(key(item));
    const found = there.get(name) ?? make(item);
    found.dataset.key = name;
    update(found, item);
    return found;
  });
  const keep = new Set(wanted);
  for (const child of [...parent.children]) if (!keep.has(child)) child.remove();
  wanted.forEach((child, at) => {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  });
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const plain = new Intl.NumberFormat("en");

export function count(value) {
  return value === null || value === undefined ? "not known" : plain.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 || value === Math.round(value) ? plain.format(Math.round(value)) : value.toFixed(1);
}

export function bytes(value) {
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return unit === "B" || size >= 10 ? `${Math.round(size)} ${unit}` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

export function millis(ms) {
  if (ms >= 10000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

export function age(secs) {
  const some = Math.max(0, secs);
  if (some < 60) return `${some < 10 ? some.toFixed(1) : some.toFixed(0)} s`;
  if (some < 3600) return `${(some / 60).toFixed(0)} min`;
  return some < 86400 ? `${(some / 3600).toFixed(1)} h` : `${(some / 86400).toFixed(1)} days`;
}

export function clock(at) {
  if (at === null || at === undefined) return "time not known";
  const when = new Date(at * 1000);
  const time = when.toLocaleTimeString("en-GB");
  return when.toDateString() === new Date().toDateString() ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

export function several(number, one, more = `${one}s`) {
  return `${plain.format(number)} ${number === 1 ? one : more}`;
}

export function backlog(units) {
  const parts = Object.entries(units ?? {}).filter(([, number]) => number !== null);
  if (parts.length && parts.every(([, number]) => number === 0)) return "nothing";
  return parts.map(([unit, number]) => (unit === "bytes" ? bytes(number) : `${plain.format(number)} ${unit}`)).join(", ");
}
