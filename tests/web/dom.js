// dom.js: as much of a document as views need to be drawn in node: a tree of nodes, their attributes and listeners. What
// lies in a place, is focused or painted is for the tests in a browser.
const PROPERTIES = ['value', 'checked', 'hidden', 'disabled', 'onclick', 'oninput', 'onchange', 'onkeydown', 'onsubmit'];

class Node {
  constructor(name, data) {
    Object.assign(this, { localName: name, nodeType: name ? 1 : 3, data, parentNode: null, childNodes: [], attributes: {}, heard: {}, style: {} });
    if (name) this.translate = true;
    if (name) for (const property of PROPERTIES) this[property] = property.startsWith('on') ? null : property === 'value' ? '' : false;
  }

  get firstChild() { return this.childNodes[0] || null; }

  get nextSibling() { return this.parentNode?.childNodes[this.parentNode.childNodes.indexOf(this) + 1] || null; }

  set className(value) { this.setAttribute('class', value); }

  set textContent(text) { this.replaceChildren(...(text ? [text] : [])); }

  get dataset() { return this.data_ ||= {}; }

  get textContent() { return this.localName ? this.childNodes.map((each) => each.textContent).join('') : this.data; }

  insertBefore(node, other) {
    node.parentNode?.removeChild(node);
    this.childNodes.splice(other ? this.childNodes.indexOf(other) : this.childNodes.length, 0, node);
    node.parentNode = this;
  }

  appendChild(node) { this.insertBefore(node, null); }

  removeChild(node) {
    this.childNodes.splice(this.childNodes.indexOf(node), 1);
    node.parentNode = null;
  }

  append(...more) { for (const each of more) this.insertBefore(typeof each === 'string' ? new Node('', each) : each, null); }

  replaceChildren(...more) {
    for (const each of [...this.childNodes]) this.removeChild(each);
    this.append(...more);
  }

  before(other) { this.parentNode.insertBefore(other, this); }

  remove() { this.parentNode?.removeChild(this); }

  get isConnected() { return Boolean(this.parentNode); }

  focus() {}

  toggleAttribute(name, on) { if (on) this.setAttribute(name, ''); else this.removeAttribute(name); }

  hasAttribute(name) { return name in this.attributes; }

  setAttribute(name, value) { this.attributes[name] = String(value); }

  removeAttribute(name) { delete this.attributes[name]; }

  addEventListener(name, listener) { (this.heard[name] ||= []).push(listener); }

  removeEventListener(name, listener) { this.heard[name] = (this.heard[name] || []).filter((each) => each !== listener); }

  dispatchEvent(event) {
    if (!(event instanceof Event)) event.target ??= this;
    for (const listener of this.heard[event.type] || []) listener.call(this, event);
    if (event.bubbles) this.parentNode?.dispatchEvent(event);
  }
}

export const node = (name = 'div') => new Node(name);
globalThis.document = Object.assign(node('document'), { createElement: node, createElementNS: (_, name) => node(name), createTextNode: (data) => new Node('', data) });

const isHit = (each, wanted) => {
  if (!each.localName) return false;
  if (wanted.startsWith('.')) return (each.attributes.class || '').split(/\s+/).includes(wanted.slice(1));
  if (wanted.startsWith('[')) return wanted.slice(1, -1).split('=')[0] in each.attributes && (!wanted.includes('=') || each.attributes[wanted.slice(1).split('=')[0]] === wanted.slice(1, -1).split('=')[1]);
  return each.localName === wanted;
};

// all nodes within that have this name, .class, [attribute] or [attribute=value], in their order
export const all = (root, wanted) => root.childNodes.flatMap((each) => [...(isHit(each, wanted) ? [each] : []), ...(each.localName ? all(each, wanted) : [])]);
export const texts = (root, wanted) => all(root, wanted).map((each) => each.textContent);

// as a person does it; what follows is drawn when this has resolved
export async function fire(target, type, more = {}) {
  target.dispatchEvent({ type, bubbles: true, preventDefault() {}, stopPropagation() {}, ...more });
  await new Promise((done) => { setTimeout(done, 0); });
}

export async function type(target, value) {
  target.value = value;
  await fire(target, 'input');
}
