// palette.js: colours and words of statuses and series, which lie in the page.
/** @type {Record<'statuses' | 'series' | 'phases', Record<string, { light: string, dark: string, label: string }>> | null} */
let read = null;

export function palette() {
  read = read || JSON.parse(document.getElementById('sv-palette').textContent);
  return read;
}

/** @param {string} status */
export function labelOf(status) {
  return palette().statuses[status]?.label || status;
}
