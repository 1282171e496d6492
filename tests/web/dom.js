// dom.js: as much of a document as views need to be drawn in node: a tree of nodes, found by selectors, with attributes,
// focus and listeners. What lies in a place, is laid out or painted is for the tests in a browser.
const PROPERTIES = ['checked', 'onclick', 'oninput', 'onchange', 'onkeydown', 'onsubmit'];
const REFLECTED = { id: '', name: '', title: '', hidden: false, disabled: false, open: false };
const BOX = { top: 0, bottom: 0, left: 0, right: 0, x: 0, y: 0, width: 0, height: 0 };

class Style {
  setProperty(name, value) { this[name] = value; }
}

const kebab = (name) => `data-${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
const KEPT = {
  get: (node, name) => node.attributes[kebab(name)],
  set: (node, name, value) => { node.setAttribute(kebab(name), value); return true; },
  deleteProperty: (node, name) => delete node.attributes[kebab(name)],
};

class Node {
  constructor(name, data) {
    Object.assign(this, { localName: name, nodeType: name ? 1 : 3, data, parentNode: null, childNodes: [], attributes: {}, heard: {}, style: new Style(), scrollTop: 0 });
    if (name) this.translate = true;
    if (name) for (const property of PROPERTIES) this[property] = property.startsWith('on') ? null : false;
  }

  // ---- the tree ----------------------------------------------------------------------------------------------------
  get firstChild() { return this.childNodes[0] || null; }

  get nextSibling() { return this.parentNode?.childNodes[this.parentNode.childNodes.indexOf(this) + 1] || null; }

  get children() { return this.childNodes.filter(({ localName }) => localName); }

  get firstElementChild() { return this.children[0] || null; }

  get lastElementChild() { return this.children.at(-1) || null; }

  get parentElement() { return this.parentNode; }

  get previousElementSibling() {
    const { children } = this.parentNode;
    return children[children.indexOf(this) - 1] || null;
  }

  get tBodies() { return this.querySelectorAll('tbody'); }

  get isConnected() { return Boolean(this.parentNode); }

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

  after(other) { this.parentNode.insertBefore(other, this.nextSibling); }

  replaceWith(other) {
    this.before(other);
    this.remove();
  }

  remove() { this.parentNode?.removeChild(this); }

  contains(other) {
    for (let each = other; each; each = each.parentNode) if (each === this) return true;
    return false;
  }

  cloneNode() {
    const made = Object.assign(new Node(this.localName, this.data), { translate: this.translate, attributes: { ...this.attributes } });
    made.append(...this.childNodes.map((each) => each.cloneNode()));
    return made;
  }

  // ---- texts, attributes, properties -------------------------------------------------------------------------------
  set textContent(text) { this.replaceChildren(...(text ? [String(text)] : [])); }

  get textContent() { return this.localName ? this.childNodes.map((each) => each.textContent).join('') : this.data; }

  set className(value) { this.setAttribute('class', value); }

  get className() { return this.attributes.class || ''; }

  get classList() {
    const names = () => this.className.split(/\s+/).filter(Boolean), write = (all) => { this.className = all.join(' '); };
    const toggle = (name, isOn) => write([...names().filter((each) => each !== name), ...(isOn ? [name] : [])]);
    return { add: (name) => toggle(name, true), remove: (name) => toggle(name, false), toggle, contains: (name) => names().includes(name) };
  }

  get dataset() { return new Proxy(this, KEPT); }

  get tabIndex() { return Number(this.attributes.tabindex ?? -1); }

  set tabIndex(value) { this.setAttribute('tabindex', value); }

  hasAttribute(name) { return name in this.attributes; }

  getAttribute(name) { return this.attributes[name] ?? null; }

  setAttribute(name, value) { this.attributes[name] = String(value); }

  removeAttribute(name) { delete this.attributes[name]; }

  toggleAttribute(name, isOn) { if (isOn) this.setAttribute(name, ''); else this.removeAttribute(name); }

  // ---- fields: the value of a list is that of its chosen option ----------------------------------------------------
  get options() { return this.querySelectorAll('option'); }

  get selectedOptions() { return this.options.slice(this.selectedIndex).slice(0, this.selectedIndex < 0 ? 0 : 1); }

  get selectedIndex() {
    if (this.chosen === null) return -1;
    const at = this.options.indexOf(this.chosen), marked = this.options.findIndex((each) => each.selected);
    return at >= 0 ? at : marked >= 0 ? marked : this.options.length ? 0 : -1;
  }

  set selectedIndex(place) { this.chosen = this.options[place] || null; }

  get value() {
    if (this.localName === 'select') return this.selectedOptions[0]?.value ?? '';
    return this.typed ?? this.attributes.value ?? (this.localName === 'option' ? this.textContent : '');
  }

  set value(value) {
    if (this.localName === 'select') this.selectedIndex = this.options.findIndex((each) => each.value === String(value));
    else this.typed = String(value);
  }

  // ---- selectors ---------------------------------------------------------------------------------------------------
  matches(selector) { return isHit(this, selector); }

  closest(selector) {
    for (let each = this; each; each = each.parentNode) if (each.matches(selector)) return each;
    return null;
  }

  querySelectorAll(selector, found = []) {
    for (const each of this.childNodes) {
      if (!each.localName) continue;
      if (each.matches(selector)) found.push(each);
      each.querySelectorAll(selector, found);
    }
    return found;
  }

  querySelector(selector) { return this.querySelectorAll(selector)[0] || null; }

  // ---- what a browser does with it ---------------------------------------------------------------------------------
  getBoundingClientRect() { return this.box || BOX; }

  focus() { document.activeElement = this; }

  scrollIntoView() {}

  reportValidity() {
    const { min = -Infinity, max = Infinity } = this.attributes;
    return this.attributes.type !== 'number' || (Number(this.value) >= Number(min) && Number(this.value) <= Number(max));
  }

  click() { this.dispatchEvent(made('click')); }

  addEventListener(name, listener, { capture = false, once = false } = {}) { (this.heard[name] ||= []).push({ listener, capture, once }); }

  removeEventListener(name, listener) { this.heard[name] = (this.heard[name] || []).filter((each) => each.listener !== listener); }

  dispatchEvent(event) {
    if (!(event instanceof Event)) event.target ??= this;
    const above = [];
    for (let each = this; each; each = each.parentNode) above.push(each);
    const tell = (each, isCaptured) => {
      if (event.isStopped) return;
      for (const { listener, capture, once } of this.listeners(each, event.type)) {
        if (capture !== isCaptured) continue;
        if (once) each.removeEventListener(event.type, listener);
        listener.call(each, event);
      }
    };
    for (const each of [...above].reverse()) tell(each, true);
    for (const each of event.bubbles ? above : [this]) tell(each, false);
  }

  listeners(each, type) {
    const own = each[`on${type}`];
    return [...(each.heard[type] || []), ...(typeof own === 'function' ? [{ listener: own, capture: false }] : [])];
  }
}

for (const [name, none] of Object.entries(REFLECTED)) {
  const isFlag = none === false;
  Object.defineProperty(Node.prototype, name, {
    get() { return isFlag ? this.hasAttribute(name) : this.attributes[name] ?? none; },
    set(value) { if (isFlag) this.toggleAttribute(name, value); else this.setAttribute(name, value); },
  });
}

// ---- selectors: each is read once ------------------------------------------------------------------------------------
const PART = /^(?:\.([\w-]+)|#([\w-]+)|\[([\w-]+)(?:=["']?([^\]"']*)["']?)?\]|:not\(([^)]*)\)|(:last-child)|([\w-]+))/;

function test(rest) {
  const [part, kind, id, attribute, value, other, isLast, name] = PART.exec(rest);
  const is = {
    [kind]: (node) => ` ${node.attributes.class} `.includes(` ${kind} `),
    [id]: (node) => node.attributes.id === id,
    [attribute]: (node) => attribute in node.attributes && (value === undefined || node.attributes[attribute] === value),
    [other]: (node) => !node.matches(other),
    [isLast]: (node) => node.parentNode?.lastElementChild === node,
    [name]: (node) => node.localName === name,
  };
  return [is[kind || id || attribute || other || isLast || name], rest.slice(part.length)];
}

function compound(selector) {
  const tests = [];
  for (let rest = selector, one; rest; tests.push(one)) [one, rest] = test(rest);
  return (node) => tests.every((is) => is(node));
}

// the steps of a selector from the last one up, each with whether its parent is meant, or any node above it
function path(selector) {
  const steps = [], words = selector.trim().replaceAll('>', ' > ').split(/\s+/);
  while (words.length) {
    steps.push({ is: compound(words.pop()), isChild: words.at(-1) === '>' });
    if (steps.at(-1).isChild) words.pop();
  }
  return steps;
}

function isBelow(node, [{ is, isChild }, ...above]) {
  if (!is(node)) return false;
  if (!above.length) return true;
  for (let each = node.parentNode; each; each = isChild ? null : each.parentNode) if (isBelow(each, above)) return true;
  return false;
}

const read = new Map();

function isHit(node, selector) {
  if (!read.has(selector)) read.set(selector, selector.split(',').map(path));
  return read.get(selector).some((steps) => isBelow(node, steps));
}

// node need not wait for what the views only do in a while; what a test waits for, it does
const { setTimeout: waited } = globalThis;
Object.assign(globalThis, { setTimeout: (work, ...more) => waited(work, ...more).unref() });

class Observer {
  observe() {}

  disconnect() {}
}

const made = (type, more) => ({ type, bubbles: true, preventDefault() {}, stopPropagation() { this.isStopped = true; }, ...more });
const top = new Node('document');

export const node = (name = 'div') => new Node(name);
globalThis.document = Object.assign(top, {
  createElement: node, createElementNS: (_, name) => node(name), createTextNode: (data) => new Node('', data),
  getElementById: (id) => top.querySelector(`#${id}`), body: node('body'), documentElement: node('html'),
});
top.append(document.documentElement);
document.documentElement.append(document.body);
document.activeElement = document.body;
Object.assign(globalThis, {
  window: globalThis, ResizeObserver: Observer, IntersectionObserver: Observer, MutationObserver: Observer,
  addEventListener() {}, dispatchEvent() {}, matchMedia: () => ({ matches: false }),
  requestAnimationFrame: (work) => setTimeout(() => work(performance.now()), 0), cancelAnimationFrame: (timer) => clearTimeout(timer),
});

// our own markup, as nodes in a `div`
export function parsed(markup) {
  const root = node(), open = [root];
  for (const [, end, name, attributes, isEmpty, text] of markup.matchAll(/<(\/?)([a-z]+)([^>]*?)(\/?)>|([^<]+)/g)) {
    if (text) open.at(-1).append(text);
    else if (end) open.pop();
    else {
      const child = node(name);
      for (const [, key, value = ''] of attributes.matchAll(/([\w-]+)(?:="([^"]*)")?/g)) child.setAttribute(key, value);
      open.at(-1).append(child);
      if (!isEmpty && name !== 'input') open.push(child);
    }
  }
  return root;
}

// all nodes within that a selector finds, in their order
export const all = (root, wanted) => root.querySelectorAll(wanted);
export const texts = (root, wanted) => all(root, wanted).map((each) => each.textContent);
export const later = () => new Promise((done) => { waited(done, 0); });

// what comes by itself, but must come
export async function until(isSo, what) {
  for (const began = performance.now(); !isSo();) {
    if (performance.now() - began > 20_000) throw new Error(`it did not come to this: ${what || isSo}`);
    await new Promise((done) => { waited(done, 1); });
  }
}

// as a person does it; what follows is drawn when this has resolved
export async function fire(target, type, more = {}) {
  target.dispatchEvent(made(type, more));
  await later();
}

export async function type(target, value) {
  target.value = value;
  await fire(target, 'input');
}
