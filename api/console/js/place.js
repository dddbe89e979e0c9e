// Where the page is: what stands behind the # of its address.

/** @returns {{view: string, study?: string, number?: number, query: URLSearchParams}} */
export function placeOf(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const query = new URLSearchParams(search);
  if (parts[0] === "workers") return { view: "workers", query };
  if (parts[0] === "new") return { view: "launch", query };
  if (parts[0] === "studies" && parts[1] && parts[2] === "trials" && /^\d+$/.test(parts[3] ?? "")) {
    return { view: "trial", study: parts[1], number: Number(parts[3]), query };
  }
  if (parts[0] === "studies" && parts[1]) return { view: "study", study: parts[1], query };
  return { view: "studies", query };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const toStudies = "#/";
export const toWorkers = "#/workers";
export const toLaunch = "#/new";
export const toStudy = (name) => `#/studies/${encodeURIComponent(name)}`;
export const toTrial = (name, number) => `${toStudy(name)}/trials/${number}`;

const KEY = "hpo:place";

/** A login forgets what stands behind the #; the page takes it up again afterwards. */
export function keepPlace() {
  try {
    sessionStorage.setItem(KEY, location.hash);
  } catch {
    // Then one begins at the studies.
  }
}

export function takeUpPlace() {
  try {
    const kept = sessionStorage.getItem(KEY);
    sessionStorage.removeItem(KEY);
    if (kept && !location.hash) location.hash = kept;
  } catch {
    // As above.
  }
}
