// The way to the server: a stream of events read by fetch (EventSource cannot send a token), else a question every second.

const TOKEN = "trident-token";
const AGAIN_MS = 1500;
const POLL_MS = 1000;
const STREAM_AGAIN_MS = 15000;
// The server says something every five seconds.
const SILENCE_MS = 15000;

export class NeedsToken extends Error {}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

async function answered(response) {
  if (response.status === 401) {
    sessionStorage.removeItem(TOKEN);
    throw new NeedsToken();
  }
  const found = await response.json().catch(() => ({ error: `the answer cannot be read (status ${response.status})` }));
  if (!response.ok) throw new Error(found.error ?? `status ${response.status}`);
  return found;
}

// path → the last answer that had a mark: it is not sent again while it is the same.
const known = new Map();

export async function ask(path) {
  const before = known.get(path);
  const response = await fetch(path, { headers: headers(before && { "If-None-Match": before.mark }), cache: "no-store" });
  if (before && response.status === 304) return before.found;
  const found = await answered(response);
  const mark = response.headers.get("ETag");
  if (mark) known.set(path, { mark, found });
  return found;
}

export async function post(path, body) {
  const more = headers({ "Content-Type": "application/json", "X-Trident-Page": "1" });
  return answered(await fetch(path, { method: "POST", headers: more, body: JSON.stringify(body) }));
}

// Calls onState with each state and onConnection with "live", "polling", "lost" or "token", until the page goes.
export async function follow(onState, onConnection) {
  let sequence = 0;
  const take = (state) => {
    sequence = state.seq;
    onState(state);
  };
  for (;;) {
    try {
      if (!(await stream((state) => { onConnection("live"); take(state); }))) {
        const until = Date.now() + STREAM_AGAIN_MS;
        while (Date.now() < until) {
          take(await ask(`state.json?since=${sequence}`));
          onConnection("polling");
          await pause(POLL_MS);
        }
        continue;
      }
      onConnection("lost");
    } catch (error) {
      onConnection(error instanceof NeedsToken ? "token" : "lost");
      if (error instanceof NeedsToken) return;
    }
    await pause(AGAIN_MS);
  }
}

// False where all streams are taken.
async function stream(onState) {
  const given_up = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => given_up.abort(), SILENCE_MS);
  };
  heard();
  try {
    const response = await fetch("events", { headers: headers(), cache: "no-store", signal: given_up.signal });
    if (response.status === 503) return false;
    if (!response.ok) await answered(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      heard();
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").find((line) => line.startsWith("data: "));
        if (event.startsWith("event: live") && data) onState(JSON.parse(data.slice(6)));
      }
    }
  } finally {
    clearTimeout(timer);
    given_up.abort();
  }
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
