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

// a text, where it may be kept; `tab`: of this tab alone
const memory = (tab) => (tab ? sessionStorage : localStorage);
export const stored = (name, tab) => { try { return memory(tab).getItem(name); } catch (e) { return null; } };
export const store = (name, value, tab) => { try { memory(tab).setItem(name, value); } catch (e) { /* private mode */ } };
