// Requests to /v1, and what a refusal says: the sentence, the fields at fault, the request's id.

export class Problem extends Error {
  constructor(status, document, requestId) {
    super(document.detail ?? `The service answered with ${status}.`);
    this.status = status;
    this.code = document.code ?? "unknown";
    /** @type {{field: string, message: string}[]} */
    this.errors = document.errors ?? [];
    this.requestId = document.request_id ?? requestId;
  }
}

const AWAY = {
  code: "away",
  detail: "The service does not answer. It may be starting anew; this page tries again by itself.",
};

/** The path of a study, or of what is below it. */
export function studyPath(name, ...below) {
  return ["v1/studies", name, ...below].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}

/** @param {string} path relative to the page's base, such as v1/studies */
export async function get(path, query = {}, signal = undefined) {
  return send("GET", withQuery(path, query), undefined, {}, signal);
}

export async function send(method, path, body = undefined, headers = {}, signal = undefined) {
  const response = await answered(path, {
    method,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
    headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
  });
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;
  throw new Problem(response.status, documentOf(text), response.headers.get("X-Request-ID"));
}

async function answered(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, AWAY, null);
  }
}

function documentOf(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

export function withQuery(path, query) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") search.append(name, one);
    }
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

/** A key for a request that may be sent again; crypto.randomUUID is missing over plain HTTP. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
