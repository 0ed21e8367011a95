// The panels below the plan: what is in flight, the last hundred, failures, dead letters, states, leaders.

import { age, backlog, bytes, clock, count, el, keyed, millis, rate, setText, several } from "./words.js";

export const KEPT = 100;
const STAGES = ["beginning", "processing", "processed", "preparing", "deciding", "publishing", "advancing"];
const STAGE_WORDS = { beginning: "begins", processing: "is processed", processed: "waits for its turn", preparing: "is prepared", deciding: "is decided", publishing: "is published", advancing: "advances", committing: "commits" };
const PHASES = { begin: "begin", process: "process", wait: "waits for its turn", prepare: "prepare", decide: "decide", publish: "publish", spout_commit: "spout's commit", advance: "advance" };
const FAILED_PARTS = { processing: "while it was processed: replayed", ready: "in a spout's is_ready", decide: "at the decision: tried again", publish: "while it was published: tried again", spout_commit: "in the spout's commit: tried again", advance: "at the advance: tried again" };

// --- numbers ------------------------------------------------------------------------------

export function showNumbers(parent, live, failures) {
  const groups = live.groups ?? [];
  // A sum of which a part is not known is not known.
  const waiting = {};
  for (const unit of Object.keys(groups[0]?.backlog ?? {})) {
    if (groups.every((group) => group.backlog?.[unit] !== undefined)) waiting[unit] = groups.reduce((sum, group) => sum + group.backlog[unit], 0);
  }
  const read = Object.values(live.rates?.groups ?? {});
  const rows = live.rates?.groups && !read.includes(null) ? read.reduce((sum, one) => sum + one, 0) : null;
  const facts = [
    ["rows", "rows/s read", live.running ? rate(rows) : "–"],
    ["transactions", "transactions/s", live.running ? rate(live.rates?.transactions) : "–"],
    ["flight", "in flight", String(groups.reduce((sum, group) => sum + group.attempts.length, 0))],
    ["backlog", "backlog", live.running ? backlog(waiting) || "not known" : "–"],
    ["txid", groups.length === 1 ? "current transaction" : "transactions advanced", groups.length === 1 ? count(groups[0].current_txid) : count(groups.reduce((sum, group) => sum + Math.max(group.current_txid - 1, 0), 0))],
    ["failures", "failures of late", String(failures.length)],
  ];
  keyed(parent, facts, ([key]) => key, ([, words]) => el("div", { class: "number" }, el("b"), el("span", {}, words)), (made, [key, words, value]) => {
    setText(made.firstChild, value);
    setText(made.lastChild, words);
    made.firstChild.className = key === "failures" && failures.length ? "bad" : "";
  });
}

// --- in flight ----------------------------------------------------------------------------

export class Flight {
  constructor(parent) {
    this.parent = parent;
    this.gone = new Map();
    this.there = new Map();
  }

  show(live, done) {
    const now = Date.now();
    const items = [];
    for (const group of live.groups ?? []) for (const attempt of group.attempts) items.push({ ...attempt, group: group.name, key: `${group.name}:${attempt.txid}`, at: live.at });
    const keys = new Set(items.map((item) => item.key));
    for (const [key, item] of this.there) {
      // It stays for a moment when it has advanced, so that its last step is seen.
      if (!keys.has(key) && done.has(key)) this.gone.set(key, { ...item, stage: "advancing", done: true, until: now + 1200 });
    }
    this.there = new Map(items.map((item) => [item.key, item]));
    for (const [key, item] of this.gone) if (item.until < now || keys.has(key)) this.gone.delete(key);
    const shown = [...this.gone.values(), ...items].sort((one, other) => one.txid - other.txid || one.group.localeCompare(other.group));
    const several_groups = (live.groups ?? []).length > 1;
    const list = this.list();
    keyed(list, shown, (item) => item.key, () => this.make(), (made, item) => this.update(made, item, several_groups));
    const idle = live.running ? "Nothing is in flight: the spouts have nothing new." : "Nothing runs.";
    setText(this.idle, shown.length ? "" : live.groups?.some((group) => group.mode === "paused") ? "Paused: no new transaction begins." : idle);
  }

  list() {
    if (!this.own) {
      this.own = el("div");
      this.idle = el("p", { class: "quiet" });
      this.parent.replaceChildren(this.own, this.idle);
    }
    return this.own;
  }

  make() {
    const marks = STAGES.map((_, at) => {
      const mark = el("span", { class: "mark" });
      mark.style.left = `${(at / (STAGES.length - 1)) * 100}%`;
      return mark;
    });
    return el("div", { class: "flight" }, el("div", { class: "flight-head" }, el("b"), el("span")), el("div", { class: "track", "aria-hidden": "true" }, ...marks, el("span", { class: "ball" })));
  }

  update(made, item, several_groups) {
    const [head, track] = made.children;
    const stage = item.stage === "committing" ? 4 : Math.max(STAGES.indexOf(item.stage), 0);
    made.classList.toggle("done", Boolean(item.done));
    made.classList.toggle("again", item.failures > 0);
    setText(head.firstChild, `${several_groups ? `${item.group} ` : ""}transaction ${item.txid}${item.attempt_id ? `, attempt ${item.attempt_id}` : ""}`);
    const failed = item.failures ? `, failed ${item.failures === 1 ? "once" : `${item.failures} times`}` : "";
    const since = item.since ? ` for ${age(item.at - item.since)}` : "";
    setText(head.lastChild, item.done ? "has advanced" : `${STAGE_WORDS[item.stage] ?? item.stage}${failed}${since}`);
    track.lastChild.style.left = `${(stage / (STAGES.length - 1)) * 100}%`;
  }
}

// --- the last hundred ---------------------------------------------------------------------

export class Bars {
  constructor(bars, detail, table, legend) {
    Object.assign(this, { bars, detail, table, chosen: null, items: [] });
    legend.replaceChildren(...Object.entries(PHASES).map(([phase, words]) => el("li", {}, el("span", { class: `key phase-${phase}`, "aria-hidden": "true" }), words)));
    table.tHead.replaceChildren(el("tr", {}, ...["transaction", "at", "rows", "total", ...Object.values(PHASES)].map((name) => el("th", { scope: "col" }, name))));
    bars.addEventListener("keydown", (event) => this.key(event));
    bars.addEventListener("click", (event) => this.choose(event.target.closest(".one")?.dataset.key));
    bars.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.choose(event.target.closest(".one")?.dataset.key));
  }

  show(items) {
    this.items = items.map((item) => ({ ...item, key: `${item.group}:${item.txid}`, parts: phases(item.durations) }));
    const most = Math.max(1, ...this.items.map((item) => total(item.parts)));
    keyed(this.bars, this.items, (item) => item.key, (item) => this.make(item), (made, item) => this.scale(made, item, most));
    const latest = [...this.items].reverse().slice(0, 20);
    keyed(this.table.tBodies[0], latest, (item) => item.key, (item) => this.row(item));
    if (this.chosen && !this.items.some((item) => item.key === this.chosen)) this.choose(null);
  }

  make(item) {
    const parts = Object.keys(PHASES).filter((phase) => item.parts[phase]).map((phase) => el("div", { class: `phase-${phase}`, "data-phase": phase }));
    return el("div", { class: "one", role: "option", id: `bar-${item.key}`, "aria-label": words(item), "aria-selected": "false" }, ...parts);
  }

  scale(made, item, most) {
    for (const part of made.children) part.style.height = `${(item.parts[part.dataset.phase] / most) * 100}%`;
    made.setAttribute("aria-selected", String(item.key === this.chosen));
  }

  row(item) {
    const numbers = [total(item.parts), ...Object.keys(PHASES).map((phase) => item.parts[phase])];
    return el("tr", {}, el("td", {}, name(item)), el("td", {}, clock(item.at)), el("td", { class: "n" }, item.rows === null ? "–" : count(item.rows)), ...numbers.map((ms) => el("td", { class: "n" }, ms ? millis(ms) : "–")));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !this.items.length) return;
    event.preventDefault();
    const at = this.items.findIndex((item) => item.key === this.chosen);
    const from = at < 0 ? (step > 0 ? -1 : this.items.length) : at;
    this.choose(this.items[Math.min(Math.max(from + step, 0), this.items.length - 1)].key);
  }

  choose(key) {
    if (key === undefined) return;
    this.chosen = key;
    for (const bar of this.bars.children) bar.setAttribute("aria-selected", String(bar.dataset.key === key));
    const item = this.items.find((one) => one.key === key);
    if (item) this.bars.setAttribute("aria-activedescendant", `bar-${key}`);
    else this.bars.removeAttribute("aria-activedescendant");
    setText(this.detail, item ? words(item) : "Choose a bar to read its phases.");
  }
}

function phases(durations) {
  const found = {};
  let known = 0;
  for (const phase of Object.keys(PHASES)) {
    const ms = durations[phase];
    if (ms > 0) {
      found[phase] = ms;
      known += ms;
    }
  }
  if (durations.total > known && !found.wait) found.wait = durations.total - known;
  return found;
}

function total(parts) {
  return Object.values(parts).reduce((sum, ms) => sum + ms, 0);
}

function name(item) {
  return `${item.group} ${item.txid}${item.attempt ? `, attempt ${item.attempt}` : ""}`;
}

function words(item) {
  const parts = Object.entries(PHASES).filter(([phase]) => item.parts[phase]).map(([phase, said]) => `${said} ${millis(item.parts[phase])}`);
  const rows = item.rows === null || item.rows === undefined ? "" : `, ${several(item.rows, "row")}`;
  const states = Object.entries(item.states ?? {}).map(([state, number]) => `${several(number, "row")} to ${state}`);
  const more = [item.recovered ? "finished after a take-over" : "", item.published ? "" : "changed nothing", ...states].filter(Boolean);
  return `Transaction ${name(item)} at ${clock(item.at)}${rows}: ${millis(total(item.parts))} (${parts.join(", ") || "durations not known"})${more.length ? `; ${more.join(", ")}` : ""}`;
}

// --- failures -----------------------------------------------------------------------------

export function showFailures(parent, failures, transactions, live) {
  const halted = (live.groups ?? []).filter((group) => group.halted_by).map((group) => `Batch group ${group.name} is halted: ${group.halted_by}`);
  const waits = (live.groups ?? []).filter((group) => group.last_error && !failures.length).map((group) => `Batch group ${group.name}: ${group.last_error}`);
  const items = [...halted, ...waits].map((text) => ({ key: `n:${text}`, text }));
  items.push(...[...failures].reverse().map((failure) => ({ ...failure, key: `f:${failure.group}:${failure.txid}:${failure.attempt}:${failure.at}` })));
  if (!items.length) items.push({ key: "none", text: "Nothing has failed lately." });
  const done = new Set(transactions.map((one) => `${one.group}:${one.txid}`));
  const current = new Map((live.groups ?? []).map((group) => [group.name, group.current_txid]));
  keyed(parent, items, (item) => item.key, (item) => {
    if (item.text) return el("p", { class: item.key === "none" ? "quiet" : "trouble" }, item.text);
    const which = item.attempt === null ? `${item.group}` : `${item.group} transaction ${item.txid}, attempt ${item.attempt}`;
    return el("details", { class: "failure" },
      el("summary", {}, el("b", { class: "bad" }, item.kind), ` ${which} `, el("span", { class: "when" }, `${clock(item.at)} ${FAILED_PARTS[item.part] ?? item.part}`), " ", el("span", { class: "good outcome" }), el("br"), (item.error || "").split("\n")[0]),
      el("pre", { tabindex: "0", "aria-label": "Traceback" }, item.traceback || item.error));
  }, (made, item) => {
    const outcome = made.querySelector(".outcome");
    const over = done.has(`${item.group}:${item.txid}`) || (item.attempt !== null && (current.get(item.group) ?? 0) > item.txid);
    if (outcome) setText(outcome, over ? "has advanced since" : "");
  });
}

// --- dead letters -------------------------------------------------------------------------

export function showLetters(panel, found, replay) {
  const { note, list } = panel;
  const number = found.count ?? found.letters.length;
  const shown = found.letters.length < number ? `, the newest ${found.letters.length} are here` : "";
  setText(note, number || found.refused.length ? `${several(number, "dead letter")}${shown}.${found.read_only ? ` No replay from here: ${found.read_only}` : ""}` : "Nothing was given up.");
  const refused = [...found.refused].reverse().map((one) => ({ ...one, key: `r:${one.state}:${one.key}:${one.part}:${one.row}`, refused: true }));
  const items = [...found.letters.map((one) => ({ ...one, key: `l:${one.stream}:${one.message}:${one.txid}` })), ...refused];
  keyed(list, items, (item) => item.key, (item) => (item.refused ? refusedRequest(item) : letter(item, found.read_only, replay)), (made, item) => {
    const fate = made.querySelector(".fate"), button = made.querySelector("button");
    if (fate) setText(fate, item.replay ? `replay: ${item.replay}` : "");
    if (fate) fate.className = `fate ${item.replay === "acked" ? "good" : item.replay === "dead" ? "bad" : "warn"}`;
    if (button && !button.dataset.busy) button.disabled = ["asked for", "acked"].includes(item.replay);
  });
}

function letter(item, read_only, replay) {
  const what = item.stream === null ? `transaction ${item.txid} was skipped` : `${item.stream} message ${item.message}`;
  const facts = [["error", item.error], ["row", item.tuples], ["operation", item.operation], ["at", item.location], ["tries", item.attempts], ["transaction", item.txid], ["metadata", item.metadata]];
  const body = [el("dl", {}, ...facts.filter(([, value]) => value !== null && value !== undefined).flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, String(value))]))];
  if (item.traceback) body.push(el("pre", { tabindex: "0", "aria-label": "Traceback" }, item.traceback));
  if (item.stream !== null && item.can_replay && !read_only) {
    const button = el("button", { type: "button", "aria-label": `Replay ${what}` }, "Replay");
    button.addEventListener("click", () => replay(item, button));
    body.push(button);
  }
  return el("details", { class: "letter" }, el("summary", {}, el("b", {}, what), " ", el("span", { class: "when" }, clock(item.given_up_at)), " ", el("span", { class: "fate" }), el("br"), (item.error ?? "no error is known").split("\n")[0]), ...body);
}

function refusedRequest(item) {
  const facts = [["status", item.status], ["answer", item.answer], ["body", item.body], ["key", item.key], ["rows", item.rows]];
  return el("details", { class: "letter" }, el("summary", {}, el("b", {}, `${item.state}: refused by its server`), " ", el("span", { class: "when" }, `transaction ${item.txid}, ${item.given_up_at}`)),
    el("dl", {}, ...facts.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, String(value))])));
}

// --- states -------------------------------------------------------------------------------

export function showStates(parent, states, live, lookUp) {
  const items = states.length ? states : [{ name: "", none: true }];
  const outside = new Map((live?.groups ?? []).flatMap((group) => group.outside ?? []).map((one) => [one.state, one]));
  keyed(parent, items, (item) => `${item.name}:${(item.keys ?? []).length}`, (item) => (item.none ? el("p", { class: "quiet" }, "There is no state yet.") : state(item, lookUp)), (made, item) => {
    if (item.none) return;
    const facts = [item.kind, ...sizes(item)];
    if (item.txid) facts.push(`has transaction ${count(item.txid)}`);
    if (item.merged !== undefined) facts.push(item.lag ? `plain table ${several(item.lag, "transaction")} behind` : "plain table up to date");
    if (item.waiting_files) facts.push(`${several(item.waiting_files, "log file")} to merge`);
    const away = outside.get(item.name);
    if (away) facts.push(`${away.condition}, has transaction ${away.txid || "none yet"}${away.waits ? `, ${away.waits} waits` : ""}${away.error ? `: ${away.error}` : ""}`);
    if (item.trouble) facts.push(item.trouble);
    keyed(made.querySelector(".facts"), facts.map((text, at) => ({ text, at })), (one) => one.at, () => el("span"), (span, one) => setText(span, one.text));
  });
}

function sizes(item) {
  return item.tables.map((table, at) => {
    const which = item.tables.length > 1 ? (at === 0 ? "log: " : "plain table: ") : "";
    return `${which}${table.rows === null ? "rows not known" : several(table.rows, "row")}, ${bytes(table.bytes)} in ${several(table.files, "file")}`;
  });
}

function state(item, lookUp) {
  const made = el("div", { class: "state" }, el("b", {}, item.name), el("div", { class: "facts" }));
  if (!item.has_keys) return made;
  const found = el("p", { class: "found", role: "status", id: `found-${item.name}` });
  const inputs = item.keys.map((key) => el("input", { name: key.name, autocomplete: "off", spellcheck: "false", autocapitalize: "off" }));
  const labels = item.keys.map((key, at) => el("label", {}, `${key.name} (${key.type})`, inputs[at]));
  const form = el("form", { class: "row", "aria-label": `Look up a key of ${item.name}` }, ...labels, el("button", {}, item.keys.length ? "Look up" : "Read the value"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(found, "…");
    found.className = "found";
    try {
      const answer = await lookUp(item.name, inputs.map((input) => input.value));
      setText(found, answer.found ? JSON.stringify(answer.value, null, 1).replace(/\n\s*/g, " ") : "The state does not have this key.");
    } catch (error) {
      found.className = "found bad";
      setText(found, error.message);
    }
  });
  made.append(form, found);
  return made;
}

// --- leaders ------------------------------------------------------------------------------

export function showLeaders(parent, live, found) {
  const leads = live.role === "leader" ? `This process leads: pid ${live.pid} on ${live.host}, epoch ${live.epoch}.`
    : live.standby_of ? `${live.standby_of}; the process that shows this page waits.`
    : live.running ? `This process is ${live.role}.` : `${live.pid ? `Last led by pid ${live.pid} on ${live.host}, epoch ${live.epoch}.` : "It is not known who led."}`;
  const parts = [{ key: "leader", text: leads }];
  if (found) {
    parts.push({ key: "standbys", title: `Standbys: ${found.standbys.length || "none"}`, rows: found.standbys.map((one) => `pid ${one.pid} on ${one.host}, waits since ${clock(one.since)}`) });
    const here = found.here.map((one) => `${clock(one.at)}: ${one.what === "leads" ? `this process took over with epoch ${one.epoch}` : one.what === "waits" ? `this process waited for pid ${one.pid} on ${one.host}` : "this process led no more"}`);
    const before = found.before.map((one) => `epoch ${one.epoch}: ${several(one.transactions, "kept transaction")}, ${clock(one.first_at)} to ${clock(one.last_at)}`);
    parts.push({ key: "here", title: "In this process", rows: here.reverse(), hide: !here.length });
    parts.push({ key: "before", title: "Leaderships of the kept transactions", rows: before.length ? before : ["none is kept"] });
  }
  keyed(parent, parts.filter((part) => !part.hide), (part) => part.key, (part) => (part.title ? el("div", {}, el("h3"), el("ul")) : el("p")), (made, part) => {
    if (!part.title) return setText(made, part.text);
    setText(made.firstChild, part.title);
    keyed(made.lastChild, part.rows.map((text, at) => ({ text, at })), (row) => row.at, () => el("li"), (row, one) => setText(row, one.text));
  });
}
