// address.js: what the address asks for, as "run=eagle&step=3", and a page that stands in another page's frame.
import { element } from './element.js';

const { documentElement: root } = document;
export const isFramed = globalThis.self !== globalThis.top;
export const inAddress = (text) => Object.fromEntries(new URLSearchParams(text));

// "embed=explore": the stage alone. The style sheet does the rest.
export function markFrame() {
  root.toggleAttribute('data-sv-framed', isFramed);
  root.toggleAttribute('data-sv-embed', 'embed' in inAddress(location.search));
}

// a way out of the frame, where the page has an address of its own
export function offerWindow(place) {
  if (!isFramed || !location.protocol.startsWith('http')) return;
  const link = Object.assign(element('a', 'sv-own-window', 'Open in its own window'), { href: location.href, target: '_blank', rel: 'noopener' });
  link.addEventListener('click', () => { link.href = location.href.replace(/embed=[a-z]*&?/, ''); });
  place.append(link);
}
