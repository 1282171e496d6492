// html.js: what preact draws, safe from a browser's translator. That puts each text into elements of its own, and preact
// would go on with a text that has left the page. So preact holds no text: where an element has nothing but text, it is a
// property, which is set whole; a text among elements has an element of its own.
import { h, html as template } from '../vendor/preact_htm.js';

const isText = (child) => typeof child === 'string' || typeof child === 'number';
const isNothing = (child) => child === null || child === undefined || typeof child === 'boolean';
const safe = new WeakSet();

// Neighbouring texts are one; a space between two elements is left to lie there, as no translator takes it.
function among(children) {
  const made = [...children];
  for (let at = made.length - 1; at > 0; at -= 1) {
    if (!isText(made[at]) || !isText(made[at - 1])) continue;
    made[at - 1] = `${made[at - 1]}${made[at]}`;
    made[at] = null;
  }
  return made.map((child) => (isText(child) ? (String(child).trim() ? h('span', { textContent: child }) : child) : secured(child)));
}

function secured(drawn) {
  if (Array.isArray(drawn)) return among(drawn);
  if (!drawn || typeof drawn.type !== 'string' || safe.has(drawn)) return drawn;
  safe.add(drawn);
  const { props } = drawn, children = [props.children].flat(Infinity).filter((child) => !isNothing(child));
  if (!children.length) return drawn;
  if (children.every(isText)) {
    delete props.children;
    props.textContent = children.join('');
  } else props.children = among([props.children].flat());
  return drawn;
}

/** @type {typeof template} */
export const html = (parts, ...values) => secured(template(parts, ...values));

/** @param {{ words: string, className?: string } & Record<string, any>} props */
export const Button = ({ words, className = '', ...more }) => html`<button type="button" class="sv-button ${className}" ...${more}>${words}</button>`;
