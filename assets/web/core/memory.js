// memory.js: what a person chose on this page, kept by the browser where it may; what comes back is not trusted.
const NAME = 'specviz-stage';

function all() {
  try {
    const kept = JSON.parse(localStorage.getItem(NAME));
    return kept && typeof kept === 'object' ? kept : {};
  } catch (error) { return {}; }
}

// the value kept under this name, if it is one of `among`, else the first of them
export const recall = (name, among) => (among.includes(all()[name]) ? all()[name] : among[0]);

export function remember(name, value) {
  try { localStorage.setItem(NAME, JSON.stringify({ ...all(), [name]: value })); } catch (error) { /* private mode */ }
}
