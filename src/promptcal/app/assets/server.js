// Requests to the server, and its events. An action is shown only after the server has saved it.
export const base = location.pathname.replace(/[^/]*$/, "");

export class Refused extends Error {
  constructor(message, status, answer) {
    super(message);
    this.status = status;
    this.answer = answer;
  }
}

async function answerOf(request) {
  let response;
  try { response = await request; } catch { throw new Refused("The server cannot be reached, so this was not saved.", 0, {}); }
  const isJson = (response.headers.get("Content-Type") || "").startsWith("application/json");
  const answer = isJson ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Refused(answer.error, response.status, answer);
  return answer;
}

export const get = (path) => answerOf(fetch(base + path));
export const post = (path, body = {}) =>
  answerOf(fetch(base + path, { method: "POST", body: typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body) }));

// Calls a listener by kind of event. After sleep or a restart of the server, it connects again.
export function listen(listeners, onLost) {
  let source = null;
  let retry = 0;
  const connect = () => {
    clearTimeout(retry);
    if (source) source.close();
    source = new EventSource(`${base}api/events`);
    for (const [kind, listener] of Object.entries(listeners)) source.addEventListener(kind, (event) => listener(JSON.parse(event.data)));
    source.onerror = async () => {
      source.close();
      let message = "The server cannot be reached. What you see may be old, and nothing can be saved. Trying again …";
      try {
        const response = await fetch(`${base}api/state`, { cache: "no-store" });
        if (response.status === 401) message = "The server was started again and has a new token. Open the link that it printed.";
        else if (response.ok) message = "";
      } catch { /* the message says it */ }
      onLost(message);
      retry = setTimeout(connect, message ? 2000 : 300);
    };
  };
  connect();
  document.addEventListener("visibilitychange", () => { if (!document.hidden && source.readyState !== EventSource.OPEN) connect(); });
}
