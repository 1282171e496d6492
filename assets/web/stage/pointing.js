// pointing.js: hover looks at a token, a click or a tap pins it; the same for every view that shows tokens.
/** @import { Hub } from '../core/hub.js' */

/** @param {HTMLElement} host @param {string} selector @param {Hub} hub */
export const pointing = (host, selector, hub) => {
  const placeOf = (event) => {
    const node = event.target.closest ? event.target.closest(selector) : null;
    return node && host.contains(node) ? { step: Number(node.dataset.step), ref: node.dataset.ref } : null;
  };
  host.addEventListener('pointerover', (event) => {
    if (event.pointerType !== 'touch') hub.hover(placeOf(event));
  });
  host.addEventListener('pointerleave', () => hub.hover(null));
  host.addEventListener('click', (event) => {
    const place = placeOf(event);
    if (place) hub.pin(place.step, place.ref);
  });
};
