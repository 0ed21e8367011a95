// The page: follows the topology, keeps the last hundred, and asks now and then for what changes slowly.

import { ask, follow, keepToken, NeedsToken, post } from "./feed.js";
import { Bars, Flight, KEPT, showFailures, showLeaders, showLetters, showNumbers, showStates } from "./panels.js";
import { PlanDrawing } from "./plan.js";
import { setText } from "./words.js";

const FAILURES_KEPT = 50;
const SLOW_MS = 3000;
const by = (id) => document.getElementById(id);

const plan = new PlanDrawing(by("plan-drawing"), by("plan-note"));
const flight = new Flight(by("flight-list"));
const bars = new Bars(by("bars"), by("bar-detail"), by("last-table"), by("legend"));
const letters = { note: by("letter-note"), list: by("letter-list") };
let transactions = [], failures = [], live = null, run = null, leaders = null, received = 0;

function onState(state) {
  if (run !== state.run_id) {
    // Another start of the topology: its numbers begin anew.
    run = state.run_id;
    transactions = [];
    failures = [];
    askSlowly();
  }
  live = state;
  received = Date.now();
  transactions = state.all ? state.transactions : joined(transactions, state.transactions, KEPT);
  failures = state.all ? state.failures : joined(failures, state.failures, FAILURES_KEPT);
  document.title = `${failures.length ? `(${failures.length} failed) ` : ""}${state.topology} – Trident`;
  setText(by("name"), state.topology);
  const role = by("role");
  setText(role, state.role);
  role.className = `chip ${state.role === "leader" ? "good" : ["failed", "halted", "gone"].includes(state.role) ? "bad" : "warn"}`;
  setText(by("about"), [state.epoch ? `epoch ${state.epoch}` : "", state.pid ? `pid ${state.pid} on ${state.host}` : "", state.as_of ?? "", state.read_only ? "read only" : ""].filter(Boolean).join(" · "));
  by("trouble").hidden = !state.error;
  setText(by("trouble"), state.error ?? "");
  showNumbers(by("numbers"), state, failures);
  flight.show(state, new Set(transactions.map((one) => `${one.group}:${one.txid}`)));
  bars.show(transactions);
  showFailures(by("failure-list"), failures, transactions, state);
  plan.showRates(state.rates ?? {});
  showLeaders(by("leader-list"), state, leaders);
  showConnection();
}

function joined(known, more, most) {
  const last = known.length ? known[known.length - 1].seq : 0;
  return [...known, ...more.filter((one) => one.seq > last)].slice(-most);
}

let connection = "";

function onConnection(state) {
  connection = state;
  showConnection();
}

function showConnection() {
  const state = connection;
  const words = { live: live && !live.running ? "connected" : "live", polling: "asking every second", lost: "connection lost, trying again", token: "a token is needed" };
  const ended = state === "lost" && live ? " (the topology may have stopped)" : "";
  by("connection").dataset.state = state;
  setText(by("connection-text"), words[state] + ended);
  document.body.classList.toggle("lost", state === "lost");
  by("token-form").hidden = state !== "token";
  by("content").hidden = document.querySelector("nav").hidden = state === "token";
  if (state === "token") by("token").focus();
}

// --- what changes slowly --------------------------------------------------------------------

let asking = false;

async function askSlowly() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    plan.show(await ask("plan.json"));
    if (live) plan.showRates(live.rates ?? {});
    await part("states", async () => showStates(by("state-list"), (await ask("states.json")).states, live, lookUp));
    await part("letters", askLetters);
    await part("leaders", async () => { leaders = await ask("take-overs.json"); if (live) showLeaders(by("leader-list"), live, leaders); });
  } catch {
    // The stream says that the connection is lost; this is asked again.
  } finally {
    asking = false;
  }
}

// What cannot be read is said where it would be, and keeps the other parts from nothing.
async function part(id, show) {
  const section = by(id);
  let said = section.querySelector(":scope > .part-problem");
  try {
    await show();
    said?.remove();
  } catch (error) {
    if (error instanceof NeedsToken || error instanceof TypeError) throw error;
    if (!said) {
      said = document.createElement("p");
      said.className = "part-problem bad";
      section.append(said);
    }
    setText(said, error.message);
  }
}

async function askLetters() {
  showLetters(letters, await ask("dead-letters.json"), replay);
}

async function replay(letter, button) {
  const said = by("letter-said");
  button.disabled = true;
  button.dataset.busy = "1";
  try {
    const answer = await post("dead-letters/replay", { stream: letter.stream, messages: [letter.message], again: false });
    setText(said, answer.done.join("; ") || "Its replay was asked for already.");
    await askLetters();
  } catch (error) {
    setText(said, error instanceof NeedsToken ? "The token is not accepted any more." : error.message);
    button.disabled = false;
  } finally {
    delete button.dataset.busy;
  }
}

function lookUp(state, texts) {
  const asked = new URLSearchParams(texts.map((text) => ["key", text]));
  return ask(`state/${encodeURIComponent(state)}?${asked}`);
}

// --- begins ---------------------------------------------------------------------------------

function begin() {
  follow(onState, onConnection);
  askSlowly();
}

by("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  keepToken(by("token").value.trim());
  try {
    await ask("state.json?since=0");
    setText(by("token-problem"), "");
    by("token").value = "";
    begin();
  } catch (error) {
    setText(by("token-problem"), error instanceof NeedsToken ? "This is not the token." : error.message);
  }
});

// A ball that has arrived is taken away also where nothing more is told.
setInterval(() => { if (live) flight.show({ ...live, at: live.at + (Date.now() - received) / 1000 }, new Set()); }, 500);
setInterval(askSlowly, SLOW_MS);
addEventListener("resize", () => plan.resized());
document.addEventListener("visibilitychange", () => { if (!document.hidden) askSlowly(); });
begin();
