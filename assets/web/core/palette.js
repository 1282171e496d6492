// palette.js: colours and words of statuses and series, which lie in the page.
let read = null;

export function palette() {
  read = read || JSON.parse(document.getElementById('sv-palette').textContent);
  return read;
}

export function labelOf(status) {
  const entry = palette().statuses[status] || {};
  return entry.short || entry.label || status;
}
